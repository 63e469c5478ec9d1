"""Chat templates: Jinja from a model's file, in a sandbox, with limits on size.

The environment is that of Hugging Face's transformers (utils/chat_template_utils.py).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ugpu.hcq.errors import BadArgument, BadFile, MissingDependency

INSTALL = "pip install 'ugpu[chat]'"
SOURCE = 1 << 17  # characters of a template
RESULT = 16 << 20  # characters of a prompt
Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template."""

    def __init__(self, source: str) -> None:
        """Raise BadFile if the template is too long or invalid."""
        try:
            jinja: Any = importlib.import_module("jinja2")
            sandbox: Any = importlib.import_module("jinja2.sandbox")
        except ImportError:
            raise MissingDependency(f"chat templates need the package jinja2: {INSTALL}",
                                    install=INSTALL) from None  # fmt: skip
        if len(source) > SOURCE:
            raise BadFile(f"a chat template must have at most {SOURCE} characters")
        self._errors = (jinja.TemplateError, TypeError, ValueError, ArithmeticError,
                        RecursionError, LookupError, AttributeError)  # fmt: skip
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _json
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except self._errors as error:
            raise BadFile(f"the chat template is invalid: {error}") from error

    def render(self, messages: Sequence[Message], **values: Any) -> str:
        """Return the prompt for messages, each with `role` and `content`. BadArgument if the
        template refuses them."""
        parts, size = [], 0
        try:
            for part in self._template.generate(
                messages=list(messages), add_generation_prompt=True, **values
            ):
                parts.append(part)
                size += len(part)
                if size > RESULT:
                    raise BadArgument(f"a prompt must have at most {RESULT} characters")
        except BadArgument:
            raise
        except self._errors as error:
            raise BadArgument(f"the chat template refuses the messages: {error}") from error
        return "".join(parts)


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise BadArgument(f"the chat template refuses the messages: {message}")
