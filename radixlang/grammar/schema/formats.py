"""The `format` keyword as patterns: which formats each draft defines, and the strings they allow.

Sources: RFC 3339 (dates), RFC 5321 (email), RFC 1123 (host names), RFC 3986 and 3987 (URIs), RFC 6570 (templates),
RFC 6901 (JSON pointers), RFC 4122 (UUIDs), RFC 4291 (IPv6). A format its draft does not define is an annotation.
"""

from __future__ import annotations

from typing import NamedTuple


class Format(NamedTuple):
    """Patterns that must be found (True) or must not (False); `exact` False: they allow more than the format."""

    terms: tuple[tuple[str, bool], ...] = ()
    max_length: int | None = None
    exact: bool = True


def lookup(name: str, draft: int) -> Format | None:
    """What `format: name` asserts in `draft`; None where it is an annotation."""
    return _FORMATS[name] if _SINCE.get(name, 9999) <= draft else None


# The older drafts let others be asserted too; these are what jsonschema-rs asserts, and many schemas mean.
_SINCE = (
    dict.fromkeys(("date-time", "email", "hostname", "ipv4", "ipv6", "uri"), 4)
    | dict.fromkeys(("date", "time", "idn-email", "regex"), 4)
    | dict.fromkeys(("uri-reference", "uri-template", "json-pointer"), 6)
    | dict.fromkeys(("iri", "iri-reference", "idn-hostname"), 7)
    | {"relative-json-pointer": 7, "duration": 2019, "uuid": 2019}
)


def _whole(pattern: str) -> Format:
    return Format(((f"^(?:{pattern})$", True),))


def _date() -> str:
    year = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
    four = "(?:0[48]|[2468][048]|[13579][26])"
    return (
        f"(?:{year}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
        f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{four}|{four}00)-02-29)"
    )


def _time() -> str:
    zone = "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    return (
        f"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?{zone}"
        "|23:59:60(?:\\.[0-9]+)?(?:[zZ]|[+-]00:00))"
    )


def _duration() -> str:
    clock = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
    days = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
    return f"P(?:{days}(?:{clock})?|{clock}|[0-9]+W)"


_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_DOMAIN = rf"{_LABEL}(?:\.{_LABEL})*"


def _ipv6() -> str:
    group = "[0-9a-fA-F]{1,4}"
    last = f"(?:{group}:{group}|{_IPV4})"
    forms = [f"(?:{group}:){{6}}{last}", f"::(?:{group}:){{5}}{last}"]
    for before in range(5):
        head = f"(?:(?:{group}:){{0,{before}}}{group})?::"
        forms.append(head + f"(?:{group}:){{{4 - before}}}{last}")
    forms += [f"(?:(?:{group}:){{0,5}}{group})?::{group}", f"(?:(?:{group}:){{0,6}}{group})?::"]
    return "|".join(forms)


def _uri(relative: bool, international: bool) -> str:
    extra = r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF\u{10000}-\u{1FFFD}" if international else ""
    letters = f"a-zA-Z0-9._~!$&'()*+,;={extra}-"
    escaped = "%[0-9a-fA-F]{2}"
    char = f"(?:[:@{letters}]|{escaped})"
    literal = f"(?:{_ipv6()}|[vV][0-9a-fA-F]+\\.[:{letters}]+)"
    authority = f"(?:(?:[:{letters}]|{escaped})*@)?(?:\\[{literal}\\]|(?:[{letters}]|{escaped})*)(?::[0-9]*)?"
    tail = f"(?:\\?(?:[/?:@{letters}]|{escaped})*)?(?:#(?:[/?:@{letters}]|{escaped})*)?"
    absolute = f"(?://{authority}(?:/{char}*)*|/(?:{char}+(?:/{char}*)*)?|{char}+(?:/{char}*)*|)"
    whole = f"[a-zA-Z][a-zA-Z0-9+.-]*:{absolute}{tail}"
    if not relative:
        return whole
    bare = f"(?:[@{letters}]|{escaped})+"
    return f"{whole}|(?://{authority}(?:/{char}*)*|/(?:{char}+(?:/{char}*)*)?|{bare}(?:/{char}*)*|){tail}"


def _template() -> str:
    name = "(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2})(?:\\.?(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2}))*"
    spec = f"{name}(?::[1-9][0-9]{{0,3}}|\\*)?"
    return (
        f"(?:[^\\x00-\\x20\"'<>\\\\^`{{|}}%\\x7F-\\x9F]|%[0-9a-fA-F]{{2}}|\\{{[+#./;?&]?{spec}(?:,{spec})*\\}})*"
    )


_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_POINTER = "(?:/(?:[^/~]|~[01])*)*"
# Without quoted names and numbers in brackets; what else is no address is found when the text is complete.
_IDN_ATOM = r"[^\u0000- \"(),.:;<>@\[\\\]\u007F\s]+"
_IDN_LABEL = r"[^\u0000-/:-@\[-`{-\u007F\s]+"
_INEXACT = Format(exact=False)
_FORMATS = {
    "date": _whole(_date()),
    "time": _whole(_time()),
    "date-time": _whole(f"{_date()}[tT]{_time()}"),
    "duration": _whole(_duration()),
    "email": Format(
        ((rf"^{_ATOM}(?:\.{_ATOM})*@(?:{_DOMAIN}|\[{_IPV4}\])$", True), ("^[^@]{1,64}@", True)), max_length=254
    ),
    "hostname": Format(((f"^{_DOMAIN}$", True), (r"(?:^|\.)[^.]{2}--", False)), max_length=253),
    "ipv4": _whole(_IPV4),
    "ipv6": _whole(_ipv6()),
    "uuid": _whole("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "uri": _whole(_uri(relative=False, international=False)),
    "uri-reference": _whole(_uri(relative=True, international=False)),
    "iri": _whole(_uri(relative=False, international=True)),
    "iri-reference": _whole(_uri(relative=True, international=True)),
    "uri-template": _whole(_template()),
    "json-pointer": _whole(_POINTER),
    "relative-json-pointer": _whole(f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})"),
    "idn-email": Format(
        ((f"^{_IDN_ATOM}(?:\\.{_IDN_ATOM})*@{_IDN_LABEL}(?:\\.{_IDN_LABEL})*$", True),), exact=False
    ),
    "idn-hostname": _INEXACT,
    "regex": _INEXACT,
}
