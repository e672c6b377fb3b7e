"""Quantities as a person reads them. Nothing here rounds what is stored."""

DASH = "–"


def format_quantity(value: float | None, digits: int = 3) -> str:
    """A bare number with ``digits`` significant digits: 0.000321, 12.3, 8.40 M. ``None`` is a dash."""
    if value is None:
        return DASH
    for limit, divisor, suffix in ((1e9, 1e9, " G"), (1e6, 1e6, " M")):
        if abs(value) >= limit:
            return _significant(value / divisor, digits) + suffix
    return _significant(value, digits)


def format_ms(seconds: float | None, digits: int = 3) -> str:
    """Seconds as milliseconds without the unit: 74.4, 1,072, 4.80. ``None`` is a dash."""
    if seconds is None:
        return DASH
    if seconds != 0 and abs(seconds) < 1e-6:
        return "< 0.001"
    return _significant(seconds * 1e3, digits)


def format_bytes(count: float | None) -> str:
    """Bytes in binary units: 8.85 MiB. ``None`` is a dash."""
    if count is None:
        return DASH
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} B" if unit == "B" else f"{_significant(value, 3)} {unit}"
        value /= 1024
    raise AssertionError("unreachable: the loop ends at TiB")


def format_duration(seconds: float | None) -> str:
    """A duration as a person says it: 0.8 s, 42 s, 3 min 20 s, 2 h 05 min. ``None`` is a dash."""
    if seconds is None:
        return DASH
    if seconds < 10:
        return f"{seconds:.1f} s"
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


def format_percent(ratio: float | None, *, sign: bool = True) -> str:
    """A ratio (1.05) as a change (+5.0%). ``None`` is a dash."""
    if ratio is None:
        return DASH
    change = (ratio - 1) * 100
    return f"{change:+.1f}%" if sign else f"{change:.1f}%"


def _significant(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    text = f"{value:,.{digits}g}"
    if "e" in text:  # Python switches to exponents for large and tiny numbers; a reader wants digits
        magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 0
        text = f"{value:,.0f}" if magnitude >= digits else f"{value:.{digits + 6}f}".rstrip("0").rstrip(".")
    elif "." not in text and abs(value) < 10 ** (digits - 1):
        text = f"{value:,.{max(0, digits - len(str(int(abs(value)))))}f}"
    elif "." in text:
        whole, fraction = text.split(".")
        shown = len(whole.lstrip("-").replace(",", "").lstrip("0")) + len(
            fraction if whole.strip("-0") else fraction.lstrip("0")
        )
        text += "0" * (digits - shown)
    return text
