"""NVML with two invented cards, for processes that find this folder in ``PYTHONPATH`` before the real module.

Everything but what asks for cards is the real module's.
"""

import importlib.machinery
import importlib.util
import socket
import sys
from pathlib import Path

HERE = Path(__file__).parent
HOST = socket.gethostname()
NODE = HOST if HOST.startswith("pdkv-node") else "fake"  # of several nodes each has cards of its own
UUIDS = (f"GPU-{NODE}-0", f"GPU-{NODE}-1")

spec = importlib.machinery.PathFinder.find_spec("pynvml", [path for path in sys.path if Path(path) != HERE])
assert spec is not None and spec.loader is not None, "nvidia-ml-py is not installed"
real = importlib.util.module_from_spec(spec)
spec.loader.exec_module(real)
globals().update({name: value for name, value in vars(real).items() if not name.startswith("__")})

sys.path.append(str(HERE.parent.parent))
from fake_nvml import FakeGpu, FakeNvml  # noqa: E402 - asks for this module, as far as it has come

nvml = FakeNvml(*(FakeGpu(uuid, bus=bus) for bus, uuid in enumerate(UUIDS)))
globals().update({name: getattr(nvml, name) for name in dir(nvml) if name.startswith("nvml")})
