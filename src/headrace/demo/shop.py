"""The shop's program: an application that knows nothing of streams and writes to its database.

Every order is one transaction with its payment, at the price that is valid at that moment. Prices change all the time,
some orders are cancelled, a few are deleted as mistakes, and a till without network hands in its payments later, with
the time at which they were made. Now and then a stolen card is tried out: some orders of one customer in quick
succession.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

__all__ = ["PRODUCTS", "Sale", "Shop"]

TABLES = """
create table customers (id bigint primary key, name text not null, city text not null, joined_at timestamptz not null);
create table products (
    id bigint primary key, name text not null, description text not null, price numeric(10,2) not null,
    changed_at timestamptz not null
);
create table orders (
    id bigint primary key, customer_id bigint not null references customers,
    product_id bigint not null references products, quantity int not null, status text not null,
    placed_at timestamptz not null
);
create table payments (
    id bigint primary key, customer_id bigint not null, amount numeric(10,2) not null, paid_at timestamptz not null
);
"""
ROASTS = ("light", "medium", "dark", "smoky", "floral", "nutty")
ORIGINS = ("Ethiopia", "Colombia", "Kenya", "Sumatra", "Peru", "Rwanda", "Jamaica", "Yemen")
NAMES = ("Ada", "Barbara", "Edsger", "Frances", "Grace", "Jim", "Leslie", "Margaret", "Niklaus", "Radia")
CITIES = ("Lisbon", "Nairobi", "Oslo", "Quito", "Seoul")
PRODUCTS = len(ROASTS) * len(ORIGINS)
CUSTOMERS = 200
PRICE_EVERY_ORDERS = 3
TILL_SHARE = 0.05
TILL_WAIT_S = (4.0, 20.0)
RECENT_MAX = 500
THIEF_EVERY_ORDERS = 100
THIEF_ORDERS = 4


@dataclass(frozen=True, slots=True)
class Sale:
    """A payment that a till holds back until it has network again."""

    due_s: float
    order: int
    customer: int
    amount: Decimal
    paid_at: datetime


class Shop:
    """Writes ``rate`` orders a second until it is closed; one thread, one connection."""

    def __init__(self, url: str, *, rate: float, seed: int) -> None:
        self._url = url
        self._rate = rate
        self._chance = random.Random(seed)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shop", daemon=True)
        self._prices: dict[int, Decimal] = {}
        self._recent: list[int] = []
        self._held: list[Sale] = []
        self._thief = 1
        self.orders = 0
        self.failed: BaseException | None = None

    def prepare(self) -> None:
        """Tables, products and customers, as a shop has them before anybody thinks of streams."""
        import psycopg

        now = datetime.now(UTC)
        with psycopg.connect(self._url) as connection, connection.cursor() as cursor:
            cursor.execute(TABLES)
            names = [f"{origin} {roast}" for origin in ORIGINS for roast in ROASTS]
            for number, name in enumerate(names, start=1):
                self._prices[number] = Decimal(self._chance.randrange(600, 2400)) / 100
                description = f"{name} roast, {self._chance.choice(('whole beans', 'ground', 'in capsules'))}"
                values = (number, name, description, self._prices[number], now)
                cursor.execute("insert into products values (%s, %s, %s, %s, %s)", values)
            for number in range(1, CUSTOMERS + 1):
                person = (number, self._chance.choice(NAMES), self._chance.choice(CITIES), now)
                cursor.execute("insert into customers values (%s, %s, %s, %s)", person)

    def open(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No further orders; the tills hand in what they hold."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop, and raise what went wrong meanwhile."""
        self.stop()
        if self.failed is not None:
            raise self.failed

    # ---- a day's work ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        import psycopg

        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                began_s = time.monotonic()
                while not self._closing.wait(max(0.0, began_s + self.orders / self._rate - time.monotonic())):
                    self._one_order(connection)
                    self._sometimes(connection)
                self._hand_in(connection, float("inf"))
        except BaseException as error:
            self.failed = error

    def _one_order(self, connection: Any) -> None:
        # Few products sell well, as everywhere.
        product = 1 + min(int(self._chance.paretovariate(0.8)) - 1, PRODUCTS - 1)
        quantity = self._chance.randrange(1, 5)
        number, placed_at = self.orders + 1, datetime.now(UTC)
        amount = self._prices[product] * quantity
        customer = self._customer()
        with connection.transaction():
            order = (number, customer, product, quantity, "placed", placed_at)
            connection.execute("insert into orders values (%s, %s, %s, %s, %s, %s)", order)
            if self._chance.random() < TILL_SHARE:
                wait_s = self._chance.uniform(*TILL_WAIT_S)
                self._held.append(Sale(time.monotonic() + wait_s, number, customer, amount, placed_at))
            else:
                payment = (number, customer, amount, placed_at)
                connection.execute("insert into payments values (%s, %s, %s, %s)", payment)
        self.orders = number
        self._recent = [*self._recent[-RECENT_MAX:], number]

    def _customer(self) -> int:
        """Anybody; but every hundredth order is the first of several with a stolen card."""
        place = self.orders % THIEF_EVERY_ORDERS
        if 0 < place < THIEF_ORDERS:
            return self._thief
        self._thief = self._chance.randrange(1, CUSTOMERS + 1)
        return self._thief

    def _sometimes(self, connection: Any) -> None:
        if self.orders % PRICE_EVERY_ORDERS == 0:
            self._change_a_price(connection)
        fate = self._chance.random()
        if fate < 0.05:
            statement = "update orders set status = 'cancelled' where id = %s"
            connection.execute(statement, (self._chance.choice(self._recent),))
        elif fate < 0.07:
            connection.execute("delete from orders where id = %s", (self._chance.choice(self._recent),))
        self._hand_in(connection, time.monotonic())

    def _change_a_price(self, connection: Any) -> None:
        product = self._chance.randrange(1, PRODUCTS + 1)
        factor = Decimal(self._chance.randrange(90, 112)) / 100
        price = max(Decimal("1.00"), (self._prices[product] * factor).quantize(Decimal("0.01")))
        statement = "update products set price = %s, changed_at = %s where id = %s"
        connection.execute(statement, (price, datetime.now(UTC), product))
        self._prices[product] = price

    def _hand_in(self, connection: Any, now_s: float) -> None:
        for sale in [each for each in self._held if each.due_s <= now_s]:
            values = (sale.order, sale.customer, sale.amount, sale.paid_at)
            connection.execute("insert into payments values (%s, %s, %s, %s)", values)
            self._held.remove(sale)

    def close_the_books(self, ahead: timedelta) -> None:
        """One last entry in each table, dated ahead, so that nothing waits any more for what might still come."""
        import psycopg

        later = datetime.now(UTC) + ahead
        with psycopg.connect(self._url) as connection:
            connection.execute("update products set changed_at = %s where id = %s", (later, PRODUCTS))
            order = (0, 1, PRODUCTS, 0, "closing", later)
            connection.execute("insert into orders values (%s, %s, %s, %s, %s, %s)", order)
