"""Expressions of DEFINE and MEASURES: what Spark computes before and after, and what the matcher computes.

A condition is split at its ANDs. What speaks of the current row alone goes to Spark and becomes a bit of the row.
The rest becomes a tree (``conditions``) whose leaves are columns that Spark computed. A measure becomes SQL text for
Spark with a column in the place of each atom (``measures``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Literal, NoReturn

import pyarrow as pa
import sqlglot
from pyspark.sql import Column
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

from headrace.spark.arguments import UNITS_US
from headrace.spark.patterns.clauses import Piece
from headrace.spark.patterns.conditions import (
    FUNCTIONS,
    Aggregated,
    Call,
    Constant,
    Expression,
    Register,
    RowColumn,
    VariableColumn,
    all_of,
)
from headrace.spark.patterns.measures import Atom, AtomKind
from headrace.spark.patterns.syntax import PatternSyntaxError

__all__ = ["Columns", "Reader"]

NAVIGATION = ("FIRST", "LAST", "PREV", "NEXT", "CLASSIFIER", "MATCH_NUMBER")
AGGREGATES: dict[type[exp.Expr], AtomKind] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.ArrayAgg: "array_agg",
}
OPERATORS: dict[type[exp.Expr], str] = {
    exp.Add: "add",
    exp.Sub: "sub",
    exp.Mul: "mul",
    exp.Div: "div",
    exp.Mod: "mod",
    exp.EQ: "eq",
    exp.NEQ: "neq",
    exp.LT: "lt",
    exp.LTE: "lte",
    exp.GT: "gt",
    exp.GTE: "gte",
    exp.And: "and",
    exp.Or: "or",
    exp.Like: "like",
}
SKIPPED_MAX = 100
"""Rows from the first or last one of a variable. Each is remembered of every run."""
OFFSET_MAX = 1_000_000
"""Rows that FIRST, LAST, PREV and NEXT look away. Beside PREV as many are kept, and beside NEXT waited for."""
LONG_MAX = (1 << 63) - 1
LONG_DIGITS = 19
"""Python refuses to read numbers of thousands of digits, so they are counted first."""
DIGITS_MAX = 38
"""Of a decimal."""
DEPTH_MAX = 200
"""Levels of an expression; a OR b OR c has two. Reading it takes some calls for each."""
NAME = re.compile(r"[A-Za-z_]\w*")
MODE = re.compile(r"\b(FINAL|RUNNING)(\s+)(?=(?:FIRST|LAST|COUNT|SUM|AVG|MIN|MAX|ARRAY_AGG)\s*\()", re.IGNORECASE)


OF_UNITS = ("DATEADD", "DATE_ADD", "DATEDIFF", "DATE_DIFF", "TIMESTAMPADD", "TIMESTAMPDIFF")
"""Their first argument may be a unit of time, which is no column."""
OF_GROUPS = ("COLLECT_LIST", "COLLECT_SET", "BIT_AND", "BIT_OR", "BIT_XOR")
"""Aggregates under other names than sqlglot's own."""


def _read_functions() -> set[str]:
    """The functions that sqlglot reads: aggregates, and those of conditions on matched rows. All others go to Spark as
    they were written, since what sqlglot makes of them is not always the same (LOG10, TO_CHAR, PARSE_JSON)."""
    found = {"IF", "LIKE", "MOD", *OF_UNITS, *OF_GROUPS}
    for each in exp.ALL_FUNCTIONS:
        names = each.sql_names()
        if issubclass(each, exp.AggFunc) or any(name.lower() in FUNCTIONS for name in names):
            found.update(names)
    return found - set(NAVIGATION)


class RowPattern(Spark):
    """Spark's SQL, where FIRST and LAST are those of row patterns and take a number as well."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']  # in Spark 4 a doubled quote stands for one

    class Parser(SparkParser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            name: of for name, of in SparkParser.FUNCTIONS.items() if name in _read_functions()
        }


@dataclass(slots=True)
class Columns:
    """What Spark has to compute of each row before it is matched."""

    values: dict[str, str] = field(default_factory=dict)
    """By SQL: the name of the column."""
    conditions: dict[str, int] = field(default_factory=dict)
    """By SQL: its bit."""
    given: dict[str, Column] = field(default_factory=dict)
    """Conditions that were given as columns, by the text that stands for them."""
    coming: frozenset[str] = frozenset()
    """Columns that the rows have in any case."""

    def computes(self, node: exp.Expr) -> bool:
        """Whether Spark computes this, where it speaks of one row alone."""
        return True

    def value(self, sql: str) -> str:
        if (name := sql.strip("`")) in self.coming and NAME.fullmatch(name):
            return name
        return self.values.setdefault(sql, f"_v{len(self.values)}")

    def bit(self, sql: str) -> int:
        return self.conditions.setdefault(sql, len(self.conditions))


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the expressions of one text. ``variables`` has, by name, the variables that a name stands for."""

    text: str
    variables: Mapping[str, frozenset[str]]
    columns: Columns

    def condition(self, name: str, piece: Piece) -> tuple[int | None, Expression | None]:
        """The bit of what a definition says of the row alone, and the rest of it."""
        alone, rest = self.split(name, piece)
        return None if alone is None else self.columns.bit(alone), rest

    def split(self, name: str, piece: Piece) -> tuple[str | None, Expression | None]:
        """What a definition says of the row alone, as SQL for Spark, and the rest of it."""
        alone, rest = self._halves(name, piece)
        sql = " AND ".join(f"({self._plain(each)})" for each in alone) if alone else None
        return sql, self._all_of(rest, name, piece)

    def trees(self, name: str, piece: Piece) -> tuple[Expression | None, Expression | None]:
        """The same, both as trees: for columns that Spark does not compute."""
        alone, rest = self._halves(name, piece)
        return self._all_of(alone, name, piece), self._all_of(rest, name, piece)

    def _halves(self, name: str, piece: Piece) -> tuple[list[exp.Expr], list[exp.Expr]]:
        parts = _conjuncts(self._parsed(piece))
        flags = [self._row_alone(each, name) for each in parts]
        return [part for part, is_alone in zip(parts, flags, strict=True) if is_alone], [
            part for part, is_alone in zip(parts, flags, strict=True) if not is_alone
        ]

    def _all_of(self, parts: list[exp.Expr], name: str, piece: Piece) -> Expression | None:
        return all_of([self._tree(each, name, piece) for each in parts])

    def measure(self, piece: Piece, atoms: dict[Atom, int], per_row: bool) -> str:
        """SQL for Spark, with a numbered column for each atom. Atoms that are new are added to ``atoms``."""
        parsed = self._parsed(piece)

        def replaced(node: exp.Expr) -> exp.Expr:
            atom = self._atom(node, piece, per_row)
            if atom is None:
                return node
            return exp.column(f"_a{atoms.setdefault(atom, len(atoms))}", quoted=True)

        return self._top_down(parsed, replaced).sql("spark")

    def _top_down(self, node: exp.Expr, replaced: Any) -> exp.Expr:
        """Replace whole atoms before their parts are looked at."""
        found: exp.Expr = replaced(node)
        if found is not node:
            return found
        for child in list(node.iter_expressions()):
            new = self._top_down(child, replaced)
            if new is not child:
                child.replace(new)
        return node

    # ---- parsing ---------------------------------------------------------------------------------------------------

    def _parsed(self, piece: Piece) -> exp.Expr:
        text = MODE.sub(lambda found: found.group(1) + "_" * len(found.group(2)), piece.text)
        try:
            parsed: exp.Expr = sqlglot.parse_one(text, dialect=RowPattern)
        except SqlglotError as error:
            raise self._mistake(piece, error) from None
        except RecursionError:
            raise self._too_deep(piece) from None
        if _deeper_than(parsed, DEPTH_MAX):
            raise self._too_deep(piece)
        self._refuse_groups(parsed, piece)
        for each in parsed.find_all(exp.Identifier):
            if not each.name.isascii():  # Spark takes such names in backticks alone
                each.set("quoted", True)
        if isinstance(parsed, exp.Alias):
            self._fail(piece, f"{parsed.alias!r} was not expected here; expected an operator", parsed.args["alias"])
        return parsed

    def _too_deep(self, piece: Piece) -> PatternSyntaxError:
        problem = "this expression is nested too deeply; IN (…) takes many values"
        return PatternSyntaxError(self.text, piece.at, problem)

    def _refuse_groups(self, parsed: exp.Expr, piece: Piece) -> None:
        """What SQL says of a group of rows, and Spark would say of all matches."""
        for each in parsed.find_all(exp.Filter, exp.Window):
            problem = f"{each.sql('spark')}: there is no OVER here"
            if isinstance(each, exp.Filter):
                problem = f"{each.sql('spark')}: there is no FILTER here; SUM(CASE WHEN … THEN … END) leaves rows out"
            self._fail(piece, problem, each)
        for star in parsed.find_all(exp.Star):
            if not self._is_count(star.find_ancestor(exp.Func)):
                self._fail(piece, "* is for COUNT(*), and COUNT(A.*) of a variable", star)

    def _is_count(self, call: exp.Expr | None) -> bool:
        """Also after RUNNING or FINAL."""
        if isinstance(call, exp.Count):
            return True
        special = None if call is None else self._special(call)
        return special is not None and special[0] == "COUNT"

    def _mistake(self, piece: Piece, error: SqlglotError) -> PatternSyntaxError:
        """What the parser of SQL stopped at, in words of ours where its own say nothing."""
        details: Any = (getattr(error, "errors", None) or [{}])[0]
        what, word = str(details.get("description") or ""), str(details.get("highlight") or "")
        lines = piece.text.split("\n")
        before = lines[: int(details.get("line") or 1) - 1]
        end = sum(len(each) + 1 for each in before) + int(details.get("col") or 0)
        if not what:
            return PatternSyntaxError(self.text, piece.at, "this is no SQL expression")
        if what.startswith("Required keyword"):  # says which class of sqlglot lacks which field
            problem = "this expression is not complete; a name that is a word of SQL stands in backticks"
            return PatternSyntaxError(self.text, piece.at + end, problem)
        expected = what.removeprefix("Expecting ").removeprefix("Expected ")
        if what.startswith("Invalid expression"):
            expected = "an operator, a comma or another clause"
        elif end >= len(piece.text):
            return PatternSyntaxError(self.text, piece.at + end, f"the expression ends here; expected {expected}")
        problem = f"{word!r} was not expected here; expected {expected}"
        return PatternSyntaxError(self.text, piece.at + max(end - len(word), 0), problem)

    def _fail(self, piece: Piece, problem: str, node: exp.Expr | None = None) -> NoReturn:
        """At the first character of the node, or of the whole piece."""
        found = [] if node is None else [int(each.meta["start"]) for each in node.walk() if "start" in each.meta]
        raise PatternSyntaxError(self.text, piece.at + min(found, default=0), problem)

    def _variable(self, column: exp.Column) -> str | None:
        """The variable that a column is said of; None for a column of any row."""
        parts = [each.name for each in column.parts]
        return parts[0].upper() if len(parts) > 1 and parts[0].upper() in self.variables else None

    def _plain(self, node: exp.Expr) -> str:
        """SQL for Spark, without the names of variables."""

        def bare(each: exp.Expr) -> exp.Expr:
            if isinstance(each, exp.Column) and self._variable(each) is not None:
                identifiers = [part.copy() for part in each.parts[1:]]
                return identifiers[0] if len(identifiers) == 1 else exp.Dot.build(identifiers)
            return each

        return node.copy().transform(bare).sql("spark")

    def _special(self, node: exp.Expr) -> tuple[str, str] | None:
        """The function of row patterns that a node calls, and its mode: FINAL, RUNNING or nothing."""
        if not isinstance(node, exp.Anonymous):
            return None
        name = str(node.this).upper()
        mode, _, rest = name.partition("_")
        if mode in ("FINAL", "RUNNING"):
            return rest.lstrip("_"), mode
        return (name, "") if name in NAVIGATION else None

    def _row_alone(self, node: exp.Expr, name: str | None) -> bool:
        for each in node.walk():
            if isinstance(each, exp.AggFunc) or self._special(each):
                return False
            if isinstance(each, exp.Column) and self._variable(each) not in (None, name):
                return False
        return True

    def _of_one_row(self, node: exp.Expr) -> bool:
        """Whether Spark can compute it of each row, so that it can be looked up at a row of one variable."""
        special = any(isinstance(each, exp.AggFunc) or self._special(each) for each in node.walk())
        return not special and len({self._variable(each) for each in node.find_all(exp.Column)}) == 1

    def _of_one(self, node: exp.Expr, piece: Piece) -> frozenset[str] | None:
        """The variables that an argument speaks of; None for all rows."""
        if any(isinstance(each, exp.AggFunc) or self._special(each) for each in node.walk()):
            self._fail(
                piece, f"{node.sql('spark')}: functions of row patterns cannot stand inside each other here", node
            )
        found = {self._variable(each) for each in node.find_all(exp.Column)}
        if len(found) > 1:
            self._fail(piece, f"{node.sql('spark')} speaks of the rows of several variables at once", node)
        name = found.pop() if found else None
        return None if name is None else self.variables[name]

    # ---- navigation and aggregates ---------------------------------------------------------------------------------

    def _atom(self, node: exp.Expr, piece: Piece, per_row: bool) -> Atom | None:
        """The atom that a node of a measure is, if it is one."""
        mode = ""
        special = self._special(node)
        if special is not None:
            name, mode = special
            if name == "CLASSIFIER":
                unknown = [each.name for each in node.expressions if each.name.upper() not in self.variables]
                if unknown:
                    self._fail(piece, f"{unknown[0]} is not in the pattern; {', '.join(self.variables)} are", node)
                wanted = frozenset[str]().union(*[self.variables[each.name.upper()] for each in node.expressions])
                return Atom("classifier", wanted or None, running=per_row and mode != "FINAL")
            if name == "MATCH_NUMBER":
                return Atom("match_number")
            if name in ("FIRST", "LAST", "PREV", "NEXT"):
                assert isinstance(node, exp.Anonymous)
                return self._navigation(node, name, mode, piece, per_row)
            node = _aggregate_of(name, node)
        running = per_row and mode != "FINAL"
        if isinstance(node, exp.AggFunc):
            kind, variables, column = self._aggregate(node, piece)
            return Atom(kind, variables, column, running=running)
        if isinstance(node, exp.Column):
            name_of = self._variable(node)
            return Atom(
                "last",
                None if name_of is None else self.variables[name_of],
                self.columns.value(self._plain(node)),
                running=running,
            )
        return None

    def _navigation(self, node: exp.Anonymous, name: str, mode: str, piece: Piece, per_row: bool) -> Atom:
        inner, number = self._arguments(node, name, piece)
        running = per_row and mode != "FINAL"
        if name in ("FIRST", "LAST"):
            column = self.columns.value(self._plain(inner))
            return Atom("first" if name == "FIRST" else "last", self._of_one(inner, piece), column, number, 0, running)
        offset = -number if name == "PREV" else number
        special = self._special(inner)
        if special is not None and special[0] in ("FIRST", "LAST") and isinstance(inner, exp.Anonymous):
            base = self._navigation(inner, special[0], special[1], piece, per_row)
            return Atom(base.kind, base.variables, base.column, base.skipped, offset, base.running)
        return Atom("last", self._of_one(inner, piece), self.columns.value(self._plain(inner)), 0, offset, running)

    def _arguments(self, node: exp.Anonymous, name: str, piece: Piece) -> tuple[exp.Expr, int]:
        """The argument of a navigation and its number: 0 for FIRST and LAST, 1 for PREV and NEXT, if not given."""
        arguments = list(node.expressions)
        if not 1 <= len(arguments) <= 2:
            self._fail(piece, f"{name} takes an expression and a number of rows", node)
        number = 1 if name in ("PREV", "NEXT") else 0
        if len(arguments) == 2:
            if not (isinstance(arguments[1], exp.Literal) and str(arguments[1].this).isdigit()):
                self._fail(piece, f"the second argument of {name} is a number of rows, such as 2", arguments[1])
            digits = str(arguments[1].this)
            number = int(digits) if len(digits) <= LONG_DIGITS else LONG_MAX
        if number > OFFSET_MAX:
            self._fail(piece, f"{name} looks at most {OFFSET_MAX:,} rows away", arguments[1])
        return arguments[0], number

    def _aggregate(self, node: exp.AggFunc, piece: Piece) -> tuple[AtomKind, frozenset[str] | None, str | None]:
        kind = AGGREGATES.get(type(node))
        if kind is None:
            known = "COUNT, SUM, AVG, MIN, MAX and ARRAY_AGG"
            self._fail(piece, f"{node.sql('spark')} is not known over matched rows; there are {known}", node)
        argument = node.this
        if isinstance(argument, exp.Distinct):
            if kind != "count" or len(argument.expressions) != 1:
                self._fail(piece, "DISTINCT is there for COUNT of one expression", node)
            kind, argument = "count_distinct", argument.expressions[0]
        if isinstance(argument, exp.Star) or (isinstance(argument, exp.Column) and isinstance(argument.this, exp.Star)):
            name = argument.table.upper() if isinstance(argument, exp.Column) else ""
            if kind != "count" or (name and name not in self.variables):
                self._fail(piece, f"{node.sql('spark')}: * is for COUNT(*), and COUNT(A.*) of a variable", node)
            return kind, self.variables[name] if name else None, None
        return kind, self._of_one(argument, piece), self.columns.value(self._plain(argument))

    # ---- conditions ------------------------------------------------------------------------------------------------

    def _tree(self, node: exp.Expr, name: str, piece: Piece) -> Expression:
        """The tree of a condition on matched rows, when ``name`` is the variable of the row that is tested."""
        if isinstance(node, exp.Paren):
            return self._tree(node.this, name, piece)
        constant = _constant(node)
        if constant is not None:
            return constant
        if isinstance(node, exp.Interval):
            self._fail(
                piece, f"{node.sql('spark')} has no fixed length; expected whole days or less, and 64 bits", node
            )
        if self._row_alone(node, name) and self.columns.computes(node):
            return RowColumn(self.columns.value(self._plain(node)))
        special = self._special(node)
        if special is not None and any((self._special(each) or ("", ""))[1] == "FINAL" for each in node.walk()):
            self._fail(piece, "FINAL is for measures; a condition sees the rows up to its own", node)
        if special is not None and special[0] not in NAVIGATION:
            node = _aggregate_of(special[0], node)
        elif special is not None:
            return self._remembered(node, special[0], name, piece)
        if isinstance(node, exp.AggFunc):
            return self._total(node, piece)
        if isinstance(node, exp.Column):
            return VariableColumn(
                Register("last", self.variables[str(self._variable(node))]), self.columns.value(self._plain(node))
            )
        return self._call(node, name, piece)

    def _remembered(self, node: exp.Expr, function: str, name: str, piece: Piece) -> Expression:
        if function not in ("FIRST", "LAST", "PREV", "NEXT") or not isinstance(node, exp.Anonymous):
            self._fail(piece, f"{function}() cannot stand in a condition", node)
        atom = self._navigation(node, function, "", piece, False)
        if atom.skipped > SKIPPED_MAX:
            self._fail(
                piece, f"{node.sql('spark')}: a condition looks at most {SKIPPED_MAX} rows of a variable away", node
            )
        is_current = atom.variables is None or atom.variables == frozenset({name})
        if atom.kind == "last" and not atom.skipped and is_current:
            return RowColumn(str(atom.column), atom.offset)
        end: Literal["first", "last"] = "first" if atom.kind == "first" else "last"
        return VariableColumn(Register(end, atom.variables, skipped=atom.skipped), str(atom.column), atom.offset)

    def _total(self, node: exp.AggFunc, piece: Piece) -> Expression:
        kind, variables, column = self._aggregate(node, piece)
        if kind not in ("count", "sum", "avg", "min", "max"):
            self._fail(
                piece, f"{node.sql('spark')} cannot stand in a condition; COUNT, SUM, AVG, MIN and MAX can", node
            )
        count = Register("count", variables, column)
        value = Register(kind if kind in ("min", "max") else "sum", variables, column)
        return Aggregated(kind, value, count)

    def _call(self, node: exp.Expr, name: str, piece: Piece) -> Expression:
        function, arguments = _function(node)
        if function not in FUNCTIONS:
            known = ", ".join(sorted(FUNCTIONS))
            problem = f"{node.sql('spark')} cannot be computed over matched rows; there are {known}"
            if self.columns.computes(node):
                problem += ". Of the current row alone, everything that Spark SQL has is possible"
                problem += f", and of one row before: LAST({node.sql('spark')})" if self._of_one_row(node) else ""
            else:
                problem += ". Anything else is computed before, as a column of the rows: rows.withColumn(…)"
            self._fail(piece, problem, node)
        return Call(function, tuple(self._tree(each, name, piece) for each in arguments))


def _deeper_than(node: exp.Expr, most: int) -> bool:
    level = [node]
    for _ in range(most):
        level = [child for each in level for child in each.iter_expressions()]
        if not level:
            return False
    return True


def _aggregate_of(name: str, node: exp.Expr) -> exp.Expr:
    """The aggregate that stands after RUNNING or FINAL."""
    arguments = ", ".join(each.sql("spark") for each in node.expressions)
    return sqlglot.parse_one(f"{name}({arguments})", dialect=RowPattern)


def _conjuncts(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Paren):
        return _conjuncts(node.this)
    if isinstance(node, exp.And):
        return [*_conjuncts(node.left), *_conjuncts(node.right)]
    return [node]


def _constant(node: exp.Expr) -> Constant | None:
    match node:
        case exp.Literal():
            if node.is_string:
                return Constant(str(node.this), pa.string())
            return _number(str(node.this))
        case exp.Boolean():
            return Constant(bool(node.this), pa.bool_())
        case exp.Null():
            return Constant(None, pa.null())
        case exp.Interval():
            return _interval(node)
    return None


def _number(text: str) -> Constant:
    """As in Spark, what is written with a point is a decimal."""
    if text.isdigit() and len(text) <= LONG_DIGITS and int(text) <= LONG_MAX:
        return Constant(int(text), pa.int64())
    if "e" in text.lower() or len(text) > DIGITS_MAX:
        return Constant(float(text), pa.float64())
    number = Decimal(text)
    scale = -int(number.as_tuple().exponent)
    return Constant(number, pa.decimal128(max(len(number.as_tuple().digits), scale), scale))


def _interval(node: exp.Interval) -> Constant | None:
    unit = str(node.args.get("unit") or "").lower().removesuffix("s")
    number = str(node.this.name) if node.this is not None else ""
    if unit not in UNITS_US or not re.fullmatch(rf"\d{{1,{LONG_DIGITS}}}", number):
        return None
    micros = int(number) * UNITS_US[unit]
    return Constant(micros, pa.duration("us")) if micros <= LONG_MAX else None


def _function(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    """The name in ``FUNCTIONS`` and the arguments of a call or an operator."""
    if type(node) in OPERATORS:
        return OPERATORS[type(node)], [node.args["this"], node.args["expression"]]
    match node:
        case exp.Neg():
            return "neg", [node.this]
        case exp.Not():
            return "not", [node.this]
        case exp.Is() if isinstance(node.expression, exp.Null):
            return "is_null", [node.this]
        case exp.Between():
            return "between", [node.this, node.args["low"], node.args["high"]]
        case exp.In() if node.expressions:
            return "in", [node.this, *node.expressions]
        case exp.If():
            return "case", [node.this, node.args["true"], node.args.get("false") or exp.Null()]
        case exp.Case():
            branches = []
            for each in node.args["ifs"]:
                asked = each.this if node.this is None else exp.EQ(this=node.this, expression=each.this)
                branches += [asked, each.args["true"]]
            return "case", [*branches, node.args.get("default") or exp.Null()]
        case exp.Anonymous():
            return str(node.this).lower(), list(node.expressions)
        case exp.Func():
            names = [each.lower() for each in node.sql_names()]
            name = next((each for each in [*names, {"power": "pow"}.get(names[0], "")] if each in FUNCTIONS), names[0])
            return name, [
                each
                for value in node.args.values()
                for each in (value if isinstance(value, list) else [value])
                if isinstance(each, exp.Expr)
            ]
    return type(node).__name__.lower(), []
