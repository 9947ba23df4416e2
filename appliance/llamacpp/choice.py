"""Which engine runs a model: ours, or llama.cpp where a development policy allows it and ours does
not know the model.

How our engine keeps the weights, resident or streamed, is `budget`'s to say.
"""

from __future__ import annotations

from appliance.errors import ApplianceError, UnsupportedError
from appliance.families.header import architecture_of
from appliance.llamacpp import engine
from appliance.models.catalogue import ModelFile
from appliance.models.file import gguf_kind
from appliance.policy.schema import Model


def foreign_reason(model: Model, file: ModelFile, *, simulated: bool) -> str | None:
    """Why `model` is given to llama.cpp; None where our engine runs it, or is to say why it does
    not.

    Never on a hardware platform: no one checks what that library does with its input, and it is not
    in the image. Never a sealed model, nor a model that must be streamed: it would lie decrypted in
    memory. The library is loaded here, before the boot's sandbox.
    """
    own = model.sealed_header_sha256 is not None or model.streaming_decrypt is True or model.rope is not None
    if not simulated or own:
        return None
    try:
        if len(file.files) > 1:  # it is given one file in memory
            return None
        header = file.supported
        gguf_kind.check(header.metadata, len(header.tensors))
    except ApplianceError:
        return None
    try:
        architecture_of(header.metadata)
    except UnsupportedError as error:
        if engine.available():
            engine.library()
            return error.summary
    except ApplianceError:
        pass
    return None
