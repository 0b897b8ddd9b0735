"""What every model under `envs/` has in common: frozen, no unknown keys, all broken rules reported at once."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

Path = tuple[str | int, ...]


class Data(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `port: true`, which pydantic would read as port 1."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        kinds = {annotation, *getattr(annotation, "__args__", ())}
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise ValueError("a number is expected")
        return value


@dataclass(frozen=True)
class Problem:
    """One mistake: where in the document (`path` of keys) and a sentence about it."""

    path: Path
    message: str


class RulesBroken(ValueError):
    """Cross-field rules that do not hold; carries every one of them, not only the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{dotted(p.path)}: {p.message}" for p in problems))
        self.problems = problems


def dotted(path: Path) -> str:
    """A path of keys as people write it: `engine.flags.watchdog-timeout`, `draft.layer_ids[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
