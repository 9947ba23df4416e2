"""The bodies and answers of `/v1/admin/models` and `/v1/admin/tenants`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from appliance.api.problems import RequestError
from appliance.codec import strict

BODY_BYTES = 4096  # most of a change


class Change(BaseModel):
    """A model to load, a model to unload, or both: then one takes the other's place in one
    generation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    load: str | None = Field(default=None, max_length=64)
    unload: str | None = Field(default=None, max_length=64)

    @classmethod
    def read(cls, body: bytes) -> Change:
        """A request's body. RequestError names what is wrong with it."""
        try:
            change = cls.model_validate(strict.json_value(body))
        except ValidationError as error:
            place = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
            name = str(place[0]) if place and place[0] in cls.model_fields else None
            raise RequestError("unknown_parameter" if place and name is None else "invalid_value",
                               f"{name or 'the body'}: allowed: load and unload, each the name of a model",
                               param=name) from None
        except ValueError:
            raise RequestError("malformed_json") from None
        if change.load is None and change.unload is None:
            raise RequestError("missing_required_parameter", "load or unload: the name of a model", param="load")
        if change.load == change.unload:
            raise RequestError("invalid_value", "load and unload name the same model: a swap is of two", param="load")
        return change


class DeclaredModel(BaseModel):
    """A model of the policy. `load` is the policy's word. `state`: `unloading` while its last
    answers end, `loading` while it is read."""

    object: Literal["declared_model"] = "declared_model"
    id: str
    load: Literal["always", "boot", "demand"]
    state: Literal["loaded", "loading", "unloading", "unloaded"]
    sha256: str


class DeclaredModels(BaseModel):
    """The models of the policy. `generation` is that of evidence made now."""

    object: Literal["list"] = "list"
    generation: int
    data: list[DeclaredModel]


class TenantListInForce(BaseModel):
    """The list of tenants that was taken. `revoked_keys`: API keys that were valid before it.
    `generation` is that of evidence made now."""

    object: Literal["tenant_list"] = "tenant_list"
    version: int
    tenants: int
    revoked_keys: int
    generation: int
