"""``python -m pdkv`` is the command ``pdkv`` of the same environment."""

from pdkv.cli import main

main()
