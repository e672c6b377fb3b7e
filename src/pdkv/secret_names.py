"""Which names are those of secrets, told from settings that only sound like it: ``HF_TOKEN``, not ``TOKEN_BUDGET``."""

import re

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# Anywhere in a name. Words run together are known by their end: PGPASSWORD, HUGGINGFACEHUB_APITOKEN.
_ANYWHERE = {"secret", "secrets", "passwords", "credential", "credentials", "apikeys", "jwt", "sshpass", "dbpass"}
_RUN_TOGETHER = ("password", "passwd", "passphrase", "apikey", "secretkey", "accesskey", "privatekey")
_ENDS = {"key", "token", "pat", "auth", "authorization", "pass", "pwd", "bearer", "cookie", "cookies", "keys", "tokens"}
# After the word that counts: where or in which form a secret holds, not what it measures.
_AFTER = {"prod", "production", "dev", "devel", "test", "testing", "stage", "staging", "qa", "ci", "live", "sandbox"}
_AFTER |= {"old", "new", "backup", "main", "default", "primary", "secondary", "read", "write", "ro", "rw", "admin"}
_AFTER |= {"value", "text", "string", "str", "raw", "b", "base", "header", "headers", "a"}
# Before it: a name of something that may be read by all.
_OPEN = {
    "public",
    "pub",
    "cache",
    "cached",
    "sort",
    "group",
    "partition",
    "hash",
    "prefix",
    "block",
    "routing",
    "lookup",
}
_OPEN |= {
    "foreign",
    "index",
    "map",
    "dict",
    "json",
    "kv",
    "num",
    "max",
    "min",
    "per",
    "eos",
    "bos",
    "pad",
    "unk",
    "sep",
}
_OPEN |= {"mask", "stop", "start", "end", "next", "last", "first", "image", "audio", "video", "special", "eot", "one"}
_OPEN |= {"two", "single", "multi", "forward", "backward", "by", "of", "metric", "label", "field", "attn", "fusion"}
# Many tokens, keys: of a service or a user, else they are counted or looked up.
_OF_ACCESS = {"api", "auth", "access", "bearer", "refresh", "private", "signing", "encryption", "service", "session"}
_OF_ACCESS |= {"hf", "github", "gitlab", "openai", "user", "client", "personal", "deploy", "admin", "valid", "allowed"}


def is_secret_name(name: str) -> bool:
    """Whether a variable or argument of this name holds a secret: ``HF_TOKEN``, ``api-key``, ``DB_PASSWORD_1``."""
    parts = [part.lower() for part in _WORDS.findall(name)]
    if any(part in _ANYWHERE or part.endswith(_RUN_TOGETHER) for part in parts):
        return True
    while len(parts) > 1 and parts[-1] in _AFTER and parts[-1] not in _ENDS:
        parts.pop()
    if not parts:
        return False
    last, before = parts[-1], parts[-2] if len(parts) > 1 else ""
    if last in {"keys", "tokens"}:
        return before in _OF_ACCESS
    if last == "pwd":
        return bool(before)  # alone it is the working directory
    return (last in _ENDS or last.endswith("token")) and before not in _OPEN


def holds_several(name: str) -> bool:
    """Whether a variable of this name, a secret's, may hold several, or one among attributes: keys, cookies."""
    last = _WORDS.findall(name)[-1:]
    return bool(last) and last[0].lower() in {
        "keys",
        "tokens",
        "secrets",
        "passwords",
        "credentials",
        "cookie",
        "cookies",
    }
