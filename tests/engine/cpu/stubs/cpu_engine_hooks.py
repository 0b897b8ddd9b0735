"""Loaded by every Python process of the engine's environment (its `.pth` file imports this, see ../setup.sh).

Three small import hooks; nothing is done until the named module is imported.

1. MOCKED: media packages that SGLang imports while loading but never uses for a
   text model. They are replaced by empty modules whose attributes are dummy
   classes (capitalised names) or functions that return None.
2. torchvision: the index's build does not fit a CPU torch, because it expects two
   operators from its compiled part. They are declared (without an
   implementation) just before the import, which then succeeds.
3. sglang.srt.arg_groups.overrides: makes SGLang believe that the CPU has AMX.
   Otherwise it replaces --attention-backend intel_amx by torch_native, which
   has no speculative decoding. The attention itself is the stand-in's. This is
   the only change to SGLang's own behaviour.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

MOCKED = ("decord", "soundfile", "timm", "av", "torchaudio")


class _DummyMeta(type):
    """Any class attribute is its own name (enough for enum-like uses)."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Dummy(metaclass=_DummyMeta):
    def __init__(self, *args, **kwargs):
        pass


class _MockModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper():
            value = _DummyMeta(name, (_Dummy,), {"__module__": self.__name__})
            setattr(self, name, value)
            return value

        def function(*args, **kwargs):
            return None

        function.__name__ = name
        return function


class _MockFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last on the path: a really installed package of that name wins."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MOCKED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = _MockModule(spec.name)
        module.__path__ = []
        module.__file__ = __file__
        module.__version__ = "0.0.0"
        return module

    def exec_module(self, module):
        pass


def _declare_torchvision_ops():
    import torch

    boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms"):
        # Where a torchvision that fits declared them, torch says so, in words that differ by version.
        with contextlib.suppress(RuntimeError):
            torch.library.define("torchvision::" + name, boxes)


def _pretend_amx(module):
    real = module.get_platform

    class Platform:
        has_amx = True

        def __getattr__(self, name):
            return getattr(real(), name)

    module.get_platform = Platform


class _Around(importlib.abc.MetaPathFinder):
    """Run a function before or after the code of one module."""

    def __init__(self, name, before=None, after=None):
        self.name, self.before, self.after = name, before, after
        self.busy = False

    def find_spec(self, name, path=None, target=None):
        if name != self.name or self.busy:
            return None
        self.busy = True  # ask the other finders; stay in place, as a mere look-up must not use us up
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy = False
        if spec is None:
            return None
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module):
            if self.before:
                self.before()
            execute(module)
            if self.after:
                self.after(module)

        loader.exec_module = exec_module
        return spec


sys.meta_path.append(_MockFinder())
sys.meta_path.insert(0, _Around("torchvision", before=_declare_torchvision_ops))
sys.meta_path.insert(0, _Around("sglang.srt.arg_groups.overrides", after=_pretend_amx))
