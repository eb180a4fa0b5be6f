"""The clauses of MATCH_RECOGNIZE: where each begins and ends in the text, and what stands in them.

    PARTITION BY …  ORDER BY …  MEASURES expression AS name, …
    ONE ROW PER MATCH | ALL ROWS PER MATCH [SHOW EMPTY MATCHES | OMIT EMPTY MATCHES | WITH UNMATCHED ROWS]
    AFTER MATCH SKIP PAST LAST ROW | TO NEXT ROW | TO FIRST name | TO LAST name | TO name
    PATTERN (…)  WITHIN INTERVAL 'n' unit | 'n unit'  SUBSET name = (name, …), …  DEFINE name AS condition, …

The parts of a clause keep their places in the text, so that an error can point at a character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.errors import UsageError
from headrace.spark.arguments import micros_of
from headrace.spark.patterns.skipping import Skip
from headrace.spark.patterns.syntax import Node, PatternSyntaxError, parse_pattern, variables_of

__all__ = ["Clauses", "Piece", "parse_clauses", "without_comments"]

KEYWORDS = {
    "partition": r"PARTITION\s+BY",
    "order": r"ORDER\s+BY",
    "measures": r"MEASURES",
    "one": r"ONE\s+ROW\s+PER\s+MATCH",
    "all": r"ALL\s+ROWS\s+PER\s+MATCH",
    "skip": r"AFTER\s+MATCH\s+SKIP",
    "pattern": r"PATTERN(?=\s*\()",
    "within": r"WITHIN",
    "subset": r"SUBSET",
    "define": r"DEFINE",
}
KEYWORD = re.compile(
    "|".join(
        rf"(?P<{name}>\b{text}\b)" if name != "pattern" else rf"(?P<{name}>\b{text})" for name, text in KEYWORDS.items()
    ),
    re.IGNORECASE,
)
QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*[\s\S]*?\*/")
NAME = re.compile(r"\s*(`[^`]+`|\"[^\"]+\"|[^\W\d]\w*)\s*")
ALIAS = re.compile(r"\s*((AS\s+)?\w+)?\s*;?\s*", re.IGNORECASE)
AS = re.compile(r"\bAS\b", re.IGNORECASE)
WITHIN = re.compile(r"(?:INTERVAL\s+)?(?:'(\s*-?[\d.]+\s*)'\s+(\w+)|(\d+)\s+(\w+)|'([^']+)')", re.IGNORECASE)
ORDER_MAX = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the text."""

    text: str
    at: int

    def fail(self, problem: str, whole: str) -> PatternSyntaxError:
        return PatternSyntaxError(whole, self.at, problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clauses:
    text: str
    partition: tuple[str, ...]
    order: tuple[tuple[str, Literal["ascending", "descending"]], ...]
    measures: tuple[tuple[str, Piece], ...]
    rows: Literal["one", "all"]
    empty: bool
    unmatched: bool
    skip: Skip
    pattern: Node
    pattern_text: str
    within_us: int | None
    subsets: dict[str, tuple[str, ...]]
    define: tuple[tuple[str, Piece], ...]


def parse_clauses(text: str, *, ordered: bool = True) -> Clauses:
    """``ordered``: whether the text has to say ORDER BY."""
    if not isinstance(text, str):
        raise UsageError(f"the text of a pattern is {text!r}, which is no text", "PARTITION BY … PATTERN (…) DEFINE …")
    text = without_comments(text)
    found = dict(_clauses(text))
    bare = re.search(r"\bPATTERN\b", text, re.IGNORECASE) if "pattern" not in found else None
    if bare is not None:
        raise PatternSyntaxError(text, bare.start(), "the pattern stands in parentheses; expected PATTERN (…)")
    # Before what is not there, since a clause whose name is misspelled stands in what they take for their own.
    partition, order = tuple(_columns(found.get("partition"), text)), tuple(_order(found.get("order"), text))
    if "pattern" not in found:
        raise PatternSyntaxError(text, len(text.rstrip()), "there is no PATTERN; expected PATTERN (…)")
    if ordered and "order" not in found:
        raise PatternSyntaxError(text, 0, "there is no ORDER BY; expected ORDER BY and a column with event time")
    pattern_piece = found["pattern"]
    opened = text.index("(", pattern_piece.at)
    closed = _closing(text, opened)
    _nothing_after(text, closed + 1, pattern_piece.at + len(pattern_piece.text), "the pattern")
    pattern = parse_pattern(text, opened + 1, closed)
    names = variables_of(pattern)
    subsets = _subsets(found.get("subset"), text, names)
    _check_one(found, text)
    empty, unmatched = _rows_options(found.get("all"), text)
    return Clauses(
        text=text,
        partition=partition,
        order=order,
        measures=tuple(_measures(found.get("measures"), text)),
        rows="all" if "all" in found else "one",
        empty=empty,
        unmatched=unmatched,
        skip=_skip(found.get("skip"), text, [*names, *subsets], subsets),
        pattern=pattern,
        pattern_text=text[opened + 1 : closed].strip(),
        within_us=_within(found.get("within"), text),
        subsets=subsets,
        define=tuple(_define(found.get("define"), text, names)),
    )


def without_comments(text: str) -> str:
    """With blanks in their place, so that places stay."""
    return QUOTED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]) if found[0][:2] in ("--", "/*") else found[0], text)


def _clauses(text: str) -> Iterator[tuple[str, Piece]]:
    """Name and contents of each clause, in order."""
    begins: list[tuple[str, int, int]] = []
    at, depth = _after_wrapper(text)
    wrapped = depth
    opened = [text.index("(")] if wrapped else []
    while at < len(text):
        quoted = QUOTED.match(text, at)
        if quoted:
            at = quoted.end()
            continue
        if text[at] in "'\"`":
            raise PatternSyntaxError(text, at, f"this {text[at]} is never closed")
        if text[at] == "(":
            opened.append(at)
            depth += 1
        elif text[at] == ")":
            depth -= 1
            if depth < 0:
                raise PatternSyntaxError(text, at, "this ) closes nothing")
            opened.pop()
            if wrapped and depth == 0:
                _only_a_name_after(text, at + 1)
                break
        keyword = KEYWORD.match(text, at) if depth == wrapped else None
        if keyword and (at == 0 or not (text[at - 1].isalnum() or text[at - 1] in "_.")):
            name = str(keyword.lastgroup)
            if any(each[0] == name for each in begins):
                problem = (
                    f"{keyword.group()} stands here for the second time; a column of that name stands in backticks"
                )
                raise PatternSyntaxError(text, at, problem)
            begins.append((name, at, keyword.end()))
            at = keyword.end()
            continue
        at += 1
    if at >= len(text) and opened:
        raise PatternSyntaxError(text, opened[-1], "this ( is never closed")
    if not begins or text[_after_wrapper(text)[0] : begins[0][1]].strip():
        first = len(text) - len(text.lstrip())
        raise PatternSyntaxError(text, first, "expected PARTITION BY, ORDER BY, MEASURES or PATTERN")
    ends = [each[1] for each in begins[1:]] + [at]
    for (name, _, start), end in zip(begins, ends, strict=True):
        yield name, Piece(text[start:end], start)


def _after_wrapper(text: str) -> tuple[int, int]:
    """The place after ``MATCH_RECOGNIZE (``, where the text begins with it, and the depth there."""
    found = re.match(r"\s*MATCH_RECOGNIZE\s*\(", text, re.IGNORECASE)
    return (found.end(), 1) if found else (0, 0)


def _only_a_name_after(text: str, at: int) -> None:
    """After MATCH_RECOGNIZE (…) SQL has the name of the result at most."""
    rest = text[at:]
    if ALIAS.fullmatch(rest) is None:
        begin = at + len(rest) - len(rest.lstrip())
        raise PatternSyntaxError(text, begin, "nothing was expected after MATCH_RECOGNIZE (…) but AS and a name")


def _closing(text: str, opened: int) -> int:
    depth = 0
    for at in range(opened, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise PatternSyntaxError(text, opened, "this ( is never closed")


def _nothing_after(text: str, start: int, end: int, what: str) -> None:
    rest = text[start:end]
    if rest.strip():
        at = start + len(rest) - len(rest.lstrip())
        raise PatternSyntaxError(
            text, at, f"{rest.split()[0]!r} was not expected after {what}; expected another clause"
        )


def _parts(piece: Piece, text: str) -> Iterator[Piece]:
    """Split at commas that are not inside anything."""
    depth, start, at = 0, piece.at, piece.at
    end = piece.at + len(piece.text)
    while at < end:
        quoted = QUOTED.match(text, at, end)
        if quoted:
            at = quoted.end()
            continue
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[at], 0)
        if text[at] == "," and depth == 0:
            yield _stripped(text, start, at)
            start = at + 1
        at += 1
    yield _stripped(text, start, end)


def _stripped(text: str, start: int, end: int) -> Piece:
    inside = text[start:end]
    at = start + len(inside) - len(inside.lstrip())
    if not inside.strip():
        raise PatternSyntaxError(text, min(at, len(text)), "something is missing here")
    return Piece(inside.strip(), at)


def _columns(piece: Piece | None, text: str) -> Iterator[str]:
    for each in _parts(piece, text) if piece else ():
        yield _name(each, text)


def _name(piece: Piece, text: str) -> str:
    found = NAME.match(piece.text)
    rest = piece.text[found.end() :] if found else ""
    if rest and re.match(r"\w", rest):
        problem = f"{rest.split()[0]!r} was not expected here; expected a comma or another clause"
        raise PatternSyntaxError(text, piece.at + len(piece.text) - len(rest), problem)
    if found is None or rest:
        raise piece.fail(
            f"{piece.text!r} is no name of a column; add a column with rows.withColumn(…) first, "
            f"or put a name that is no word in backticks",
            text,
        )
    return found.group(1).strip('`"')


def _order(piece: Piece | None, text: str) -> Iterator[tuple[str, Literal["ascending", "descending"]]]:
    for number, each in enumerate(_parts(piece, text) if piece else ()):
        nulls = re.search(r"\sNULLS\s+(FIRST|LAST)$", each.text, re.IGNORECASE)
        if nulls is not None:
            at = each.at + nulls.start() + 1
            raise PatternSyntaxError(text, at, "null is last in every order; expected ASC, DESC or nothing")
        words = each.text.rsplit(None, 1)
        descending = len(words) == 2 and words[1].upper() == "DESC"
        named = Piece(words[0], each.at) if len(words) == 2 and words[1].upper() in ("ASC", "DESC") else each
        if number == 0 and descending:
            raise each.fail("the first column of ORDER BY is the event time and must be ascending", text)
        yield _name(named, text), "descending" if descending else "ascending"


def _measures(piece: Piece | None, text: str) -> Iterator[tuple[str, Piece]]:
    for each in _parts(piece, text) if piece else ():
        places = [found for found in AS.finditer(each.text) if _outside(each.text, found.start())]
        if not places:
            raise each.fail("a measure is 'expression AS name'; there is no AS", text)
        last = places[-1]
        name = _stripped(text, each.at + last.end(), each.at + len(each.text))
        if NAME.fullmatch(name.text) is None:
            raise name.fail(f"{name.text!r} is no name of a measure; other names than words stand in backticks", text)
        yield _name(name, text), _stripped(text, each.at, each.at + last.start())


def _outside(text: str, at: int) -> bool:
    before = QUOTED.sub("", text[:at])
    return before.count("(") == before.count(")")


def _define(piece: Piece | None, text: str, names: list[str]) -> Iterator[tuple[str, Piece]]:
    for each in _parts(piece, text) if piece else ():
        found = re.match(r"(`[^`]+`|\"[^\"]+\"|\w+)\s+AS\s+", each.text, re.IGNORECASE)
        if found is None:
            raise each.fail("a definition is 'NAME AS condition'", text)
        name = found.group(1).strip('`"').upper()
        if name not in names:
            raise each.fail(f"{name} is not in the pattern; its variables are {', '.join(names) or 'none'}", text)
        yield name, Piece(each.text[found.end() :], each.at + found.end())


def _subsets(piece: Piece | None, text: str, names: list[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for each in _parts(piece, text) if piece else ():
        parts = re.fullmatch(r"(\w+)\s*=\s*\(([^)]*)\)", each.text)
        if parts is None:
            raise each.fail("a subset is 'NAME = (NAME, …)'", text)
        name = parts.group(1).upper()
        if name in names or name in found:
            what = "a variable of the pattern" if name in names else "a subset already"
            raise each.fail(f"{name} is {what}; expected a new name", text)
        members = list(_parts(Piece(parts.group(2), each.at + parts.start(2)), text))
        for member in members:
            if member.text.upper() not in names:
                raise member.fail(
                    f"{member.text.upper()} is not in the pattern; its variables are {', '.join(names)}", text
                )
        found[name] = tuple(member.text.upper() for member in members)
    return found


def _skip(piece: Piece | None, text: str, known: list[str], subsets: dict[str, tuple[str, ...]]) -> Skip:
    if piece is None:
        return Skip("past_last")
    words = piece.text.upper().split()
    match words:
        case ["PAST", "LAST", "ROW"]:
            return Skip("past_last")
        case ["TO", "NEXT", "ROW"]:
            return Skip("next")
        case ["TO", ("FIRST" | "LAST") as side, name] if name in known:
            return Skip("first" if side == "FIRST" else "last", frozenset(subsets.get(name, (name,))))
        case ["TO", name] if name in known:
            return Skip("last", frozenset(subsets.get(name, (name,))))
        case ["TO", "FIRST" | "LAST", name] | ["TO", name] if name not in ("FIRST", "LAST", "NEXT"):
            at = piece.at + piece.text.upper().rindex(name)
            raise PatternSyntaxError(text, at, f"{name} is not in the pattern; its variables are {', '.join(known)}")
    expected = "PAST LAST ROW, TO NEXT ROW, TO FIRST variable, TO LAST variable or TO variable"
    at = piece.at + len(piece.text) - len(piece.text.lstrip())
    raise PatternSyntaxError(text, at, f"AFTER MATCH SKIP {piece.text.strip()} is not known; expected {expected}")


def _within(piece: Piece | None, text: str) -> int | None:
    if piece is None:
        return None
    at = min(piece.at + len(piece.text) - len(piece.text.lstrip()), len(text))
    found = WITHIN.match(piece.text.strip())
    if found is None:
        raise PatternSyntaxError(text, at, "expected WITHIN INTERVAL '5' MINUTE or WITHIN '5 minutes'")
    _nothing_after(text, at + found.end(), piece.at + len(piece.text), "the time")
    said = " ".join(each.strip().lower() for each in found.groups() if each is not None)
    try:
        return micros_of(said, "WITHIN")
    except UsageError as error:
        raise PatternSyntaxError(text, at, str(error)) from None


def _check_one(found: dict[str, Piece], text: str) -> None:
    """ONE ROW PER MATCH stands alone."""
    if "one" not in found:
        return
    piece = found["one"]
    if "all" in found:
        second = max(piece.at, found["all"].at)
        at = max(each.start() for each in KEYWORD.finditer(text, 0, second) if each.lastgroup in ("one", "all"))
        raise PatternSyntaxError(text, at, "there is ONE ROW PER MATCH and ALL ROWS PER MATCH; expected one of them")
    _nothing_after(text, piece.at, piece.at + len(piece.text), "ONE ROW PER MATCH")


def _rows_options(piece: Piece | None, text: str) -> tuple[bool, bool]:
    options = {"": (True, False), "SHOW EMPTY MATCHES": (True, False), "OMIT EMPTY MATCHES": (False, False)}
    options["WITH UNMATCHED ROWS"] = (True, True)
    said = " ".join(piece.text.upper().split()) if piece else ""
    if said not in options:
        assert piece is not None
        expected = "SHOW EMPTY MATCHES, OMIT EMPTY MATCHES or WITH UNMATCHED ROWS"
        raise PatternSyntaxError(text, piece.at + 1, f"{said!r} is not known here; expected {expected}")
    return options[said]
