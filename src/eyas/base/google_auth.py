"""Reads access tokens and secrets in a job on Google Cloud. `eyas.cli` and `base.openai_http` call it.

A CustomJob of Vertex AI has no variables that refer to secrets. So it gets their names, and `load_secrets` reads them:

    EYAS_SECRETS="HF_TOKEN=projects/P/secrets/NAME/versions/latest"  ->  HF_TOKEN=VALUE here and in child processes
"""

import base64
import json
import os
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from eyas.base.errors import InputError

SECRETS_VARIABLE = "EYAS_SECRETS"
SECRET_MANAGER = "https://secretmanager.googleapis.com/v1"
TOKEN_URL = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
TIMEOUT_S = 10.0


def read_access_token() -> str:
    """Returns a valid access token of the service account of this machine. The metadata server renews it in time."""
    fix = "Outside Google Cloud, set api_key_env to the name of a variable that holds an access token"
    return _get(TOKEN_URL, {"Metadata-Flavor": "Google"}, fix)["access_token"]


def load_secrets(names: str) -> None:
    """Stores secrets of Secret Manager in environment variables. Raises InputError if one cannot be read.

    Args:
        names: VARIABLE=projects/P/secrets/NAME/versions/VERSION, separated by blanks.
    """
    headers = {"Authorization": f"Bearer {read_access_token()}"} if names else {}
    for variable, secret in (word.split("=") for word in names.split()):
        fix = "Create the secret, and give the service account of the job roles/secretmanager.secretAccessor"
        data = _get(f"{SECRET_MANAGER}/{secret}:access", headers, fix)["payload"]["data"]
        os.environ[variable] = base64.b64decode(data).decode().strip()


def _get(url: str, headers: dict[str, str], fix: str) -> Any:
    try:
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT_S) as reply:
            return json.load(reply)
    except OSError as error:
        reason = f"HTTP {error.code}" if isinstance(error, HTTPError) else type(error).__name__
        raise InputError(f"{url} cannot be read ({reason})", fix) from None
