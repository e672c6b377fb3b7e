"""Options on the command line of a container's client, in every way in which they may be written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Grammar:
    """Options that take no value: letters, and names. Every other one does, from the next word if not in its own."""

    letters: str
    names: frozenset[str]

    def has_switch(self, option: str) -> bool:
        """Whether ``--detach`` or ``-d`` is one of them."""
        return option in self.names or (not option.startswith("--") and option[1:] in self.letters)


BEFORE_VERB = Grammar("dDqrsv", frozenset({
    "--debug", "--quiet", "--remote", "--silent", "--tls", "--tlsverify", "--verbose",
}))  # fmt: skip
OF_RUN = Grammar("ditPq", frozenset({
    "--detach", "--disable-content-trust", "--env-host", "--http-proxy", "--init", "--interactive",
    "--no-healthcheck", "--no-hosts", "--oom-kill-disable", "--privileged", "--publish-all", "--quiet",
    "--read-only", "--read-only-tmpfs", "--replace", "--rm", "--rmi", "--sig-proxy", "--tls-verify", "--tty",
    "--unsetenv-all",
}))  # fmt: skip
OF_APPTAINER = Grammar("cCefipuw", frozenset({
    "--allow-setuid", "--cleanenv", "--compat", "--contain", "--containall", "--disable-cache", "--fakeroot",
    "--ipc", "--keep-privs", "--net", "--no-eval", "--no-home", "--no-https", "--no-init", "--no-nv",
    "--no-privs", "--no-rocm", "--no-umask", "--nv", "--nvccli", "--pid", "--rocm", "--underlay", "--unsquash",
    "--userns", "--uts",
    "--vm", "--writable", "--writable-tmpfs",
}))  # fmt: skip


@dataclass(frozen=True)
class Option:
    """``name`` is ``--detach`` or ``-d``, ``word`` the word in which it stands, ``value`` None where it has none."""

    name: str
    word: str
    value: str | None = None

    @property
    def is_on(self) -> bool:
        """A switch may say that it is off: ``--detach=false``."""
        return self.value is None or self.value.lower() not in ("false", "f", "0")


def split_options(words: Sequence[str], grammar: Grammar) -> tuple[list[Option], list[str]]:
    """The options that ``words`` begin with, and what follows from the first other word on: the image, or a verb.

    A word that begins with a dash is nobody's value: before it may stand a switch that the grammar does not know.
    """
    found: list[Option] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        *switches, last = _options_of(word, grammar)
        if last.value is None and not grammar.has_switch(last.name) and rest and not rest[0].startswith("-"):
            last = Option(last.name, word, rest.pop(0))
        found += [*switches, last]
    return found, rest


def _options_of(word: str, grammar: Grammar) -> Iterator[Option]:
    """``-dit`` is three, ``-eA=1`` one with a value. Always at least one."""
    if word.startswith("--") or len(word) == 1:
        name, given, value = word.partition("=")
        yield Option(name, word, value if given else None)
        return
    for place, letter in enumerate(word[1:], 2):
        value = word[place:]
        if value.startswith("=") or letter not in grammar.letters:
            yield Option(f"-{letter}", word, value.removeprefix("=") or None)
            return
        yield Option(f"-{letter}", word)
