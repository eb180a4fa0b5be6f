"""The names of APIs."""

from __future__ import annotations

import re

from headrace.wire.kafka.apis import APIS


def test_every_api_on_offer_has_the_name_of_its_key() -> None:
    spelled = {api.key.name: re.sub(r"(?<=.)(?=[A-Z])", "_", api.name).upper() for api in APIS.values()}
    assert {key: name for key, name in spelled.items() if key != name} == {}
