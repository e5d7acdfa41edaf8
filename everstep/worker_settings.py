"""The settings of a worker: `EVERSTEP_*` variables."""

from __future__ import annotations

from functools import cached_property

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from activities.message_templates import template
from activities.webhook import Webhook, exposes_token, problem, secret_bytes
from everstep import backends
from everstep.backends import settings_class
from everstep.backends.settings import BackendSettings
from everstep.dialects.dialect import has_pods_by_name
from everstep.telemetry.worker_log import LogFormat
from everstep.version import __version__


class WorkerSettings(BaseSettings):
    """The settings of a worker: `EVERSTEP_*` variables. `TEMPORAL_*` variables name server and namespace."""

    model_config = SettingsConfigDict(env_prefix="EVERSTEP_", env_nested_delimiter="__")

    backend: str = "local"
    cluster: str = "local"
    time_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # divides long limits
    janitor: bool = True  # start the cluster's janitor if it does not run
    concurrency: int = Field(default=500, ge=1)  # most activities of the cluster at once
    deployment: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,99})?$")
    """The name that workers of several versions share in Temporal's worker versioning. Empty: off."""
    build_id: str = Field(default=__version__, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")
    """The version of this worker in its deployment."""
    log_format: LogFormat = "text"  # of standard error
    metrics_address: str | None = None  # HOST:PORT of a page for Prometheus
    webhook_url: str | None = None  # gets what happens to jobs
    webhook_token: SecretStr = SecretStr("")
    webhook_secret: SecretStr = SecretStr("")  # signs each message
    webhook_template: str = ""  # of the body: a name, or a file

    @field_validator("webhook_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url and (why := problem(url)):
            raise ValueError(why)
        return url or None

    @field_validator("webhook_token")
    @classmethod
    def _is_a_token(cls, token: SecretStr, info: ValidationInfo) -> SecretStr:
        url = info.data.get("webhook_url")
        if token.get_secret_value() and url and exposes_token(url):
            raise ValueError(
                "over plain http anybody on the way can read it; give EVERSTEP_WEBHOOK_URL an "
                "https address, or send no token"
            )
        if not all(c.isascii() and c.isprintable() for c in token.get_secret_value()):
            raise ValueError("a token is printable ASCII")
        return token

    @field_validator("webhook_secret")
    @classmethod
    def _is_a_secret(cls, secret: SecretStr) -> SecretStr:
        if secret.get_secret_value():
            secret_bytes(secret.get_secret_value())
        return secret

    @field_validator("webhook_template")
    @classmethod
    def _is_a_template(cls, name: str) -> str:
        if name:
            template(name)
        return name

    @property
    def scale(self) -> float:
        """The scale of time that applies: only clusters for rehearsals have one."""
        return self.time_scale if settings_class(self.backend).scales_time else 1.0

    @cached_property
    def listener(self) -> Webhook | None:
        if self.webhook_url is None:
            return None
        secret = self.webhook_secret.get_secret_value()
        return Webhook(
            url=self.webhook_url,
            token=self.webhook_token.get_secret_value(),
            secret=secret_bytes(secret) if secret else b"",
            template=template(self.webhook_template) if self.webhook_template else None,
        )

    def has_pods(self, cluster: str) -> bool:
        """Whether a cluster makes pods: the worker's own by its backend, another one by its name."""
        if cluster == self.cluster:
            return backends.has_pods(self.backend)
        return has_pods_by_name(cluster)

    def for_backend(self) -> BackendSettings:
        """The settings of the backend. Raises InvalidSpec if there is no backend of this name."""
        return settings_class(self.backend)()
