"""A detector that sends texts to Google Sensitive Data Protection (DLP). THE RAW PROMPTS LEAVE THIS MACHINE.

It runs only if the recipe names it. One request holds many texts, as the rows of a table. The service accepts at most
0.5 MB and 50,000 values in a request, and returns at most 3,000 findings. If a response is truncated, the detector
halves the request and sends both halves. If the quota is used up or the service is down, it retries with backoff.
Source of the limits: https://cloud.google.com/sensitive-data-protection/limits
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from eyas.base.errors import InputError, StageError, UsageError
from eyas.privacy.span import KINDS, Span, split_windows
from eyas.privacy.word_lists import read_data_file, read_kinds

MAX_BYTES = 480_000  # of JSON in the rows of a request; the service limits the whole request to 0.5 MB
MAX_FINDINGS = 3_000
ROW_BYTES = 128  # an upper bound of the JSON that a row adds to its text; so 50,000 rows never fit
WINDOW = 30_000  # characters in a row: at most 360,000 bytes of JSON
OVERLAP = 500
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 32.0
RETRY_S = 180.0  # the quotas count requests per minute
TIMEOUT_S = 120.0
_SCORES = {"VERY_LIKELY": 1.0, "LIKELY": 0.8, "POSSIBLE": 0.5, "UNLIKELY": 0.3, "VERY_UNLIKELY": 0.1}
# The service's documentation does not list the languages of PERSON_NAME; eyas relies on these.
NAME_LANGUAGES = frozenset("de en es fr it ja ko nl pl pt sv zh".split())  # noqa: SIM905
_FIXES: dict[str, str] = read_data_file("data/entity_labels")["fixes_of_google"]  # by class of the exception, or a base

Rows = list[tuple[int, int, str]]  # index of the text, where the row starts in it, the row


class DlpDetector:
    """A detector that calls the DLP service of a Google Cloud project."""

    def __init__(self, argument: str, client: Any = None) -> None:
        """Connects to the service.

        Args:
            argument: PROJECT, PROJECT/REGION or "": the project of the credentials. "?template=NAME" may follow: the
                inspect template that replaces eyas's choice of types and likelihood.
            client: A DlpServiceClient; None builds one.

        Raises:
            UsageError: The package google-cloud-dlp is not installed.
            StageError: There are no credentials, or they have no project.
        """
        place, _, template = argument.partition("?template=")
        project, _, region = place.partition("/")
        region = region or "global"
        self._client, default_project = (client, None) if client else _connect(region)
        project = project or default_project
        if not project:
            raise StageError("The credentials of Google Cloud name no project", "Use the detector dlp:PROJECT")
        self._parent = f"projects/{project}/locations/{region}"
        self._template = template if "/" in template else template and f"{self._parent}/inspectTemplates/{template}"
        self._types = read_kinds("google")
        # A type that a template defines may have the name of a kind.
        self._kinds = read_kinds("google_template") | {kind: kind for kind in KINDS} | self._types
        self.name = f"dlp {self._template or ','.join(self._types)}"
        self.name_languages: frozenset[str] = NAME_LANGUAGES

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Returns one list of spans for each text. Raises StageError if the service fails."""
        found: list[list[Span]] = [[] for _ in texts]
        for rows in _batch_rows(texts):
            self._inspect(rows, found)
        return found

    def _inspect(self, rows: Rows, found: list[list[Span]]) -> None:
        result = self._request(rows).result
        if result.findings_truncated or len(result.findings) >= MAX_FINDINGS:
            for half in _halve(rows):
                self._inspect(half, found)
            return
        for finding in result.findings:
            kind, rule = self._kinds.get(finding.info_type.name), f"dlp.{finding.info_type.name}"
            if kind is None:
                problem = f"The DLP template returned the info type {finding.info_type.name}, which eyas does not know"
                raise InputError(problem, "Remove it from the template, or give a custom type the name of a kind")
            score = _SCORES.get(getattr(finding.likelihood, "name", ""), 0.5)
            location = finding.location
            index, offset, text = rows[location.content_locations[0].record_location.table_location.row_index]
            start, end = location.codepoint_range.start, min(location.codepoint_range.end, len(text))
            if start < end and kind in KINDS:
                found[index].append(Span(offset + start, offset + end, kind, score, rule))

    def _request(self, rows: Rows) -> Any:
        from google.api_core import exceptions, retry

        # The response holds positions, no values.
        config: dict[str, Any] = {"include_quote": False, "limits": {"max_findings_per_request": MAX_FINDINGS}}
        if not self._template:
            config |= {"info_types": [{"name": name} for name in self._types], "min_likelihood": "POSSIBLE"}
        values = [{"values": [{"string_value": text}]} for *_, text in rows]
        item = {"table": {"headers": [{"name": "text"}], "rows": values}}
        request = {"parent": self._parent, "inspect_config": config, "item": item}
        request["inspect_template_name"] = self._template
        # It replaces the client's own policy, which retries for 300 s, and not after a 429.
        # The errors of the network are OSErrors.
        is_transient = retry.if_exception_type(exceptions.TooManyRequests, exceptions.ServerError, OSError)
        policy = retry.Retry(is_transient, initial=FIRST_WAIT_S, maximum=MAX_WAIT_S, timeout=RETRY_S)
        try:
            return self._client.inspect_content(request=request, retry=policy, timeout=TIMEOUT_S)
        except Exception as error:  # its message may quote the request
            failure = error.cause if isinstance(error, exceptions.RetryError) and error.cause else error
        raise _service_error(failure, f"for {self._parent}")


def _connect(region: str, credentials: Any = None) -> tuple[Any, str | None]:
    """Returns a client for the service in a region, and the project of the credentials."""
    try:
        import google.auth.exceptions  # pyright: ignore
        import google.cloud.dlp_v2 as dlp_v2  # pyright: ignore
    except ImportError:
        problem = "The detector dlp needs the package google-cloud-dlp"
        raise UsageError(problem, "Run: pip install 'eyas[dlp]'") from None
    project = None
    if credentials is None:
        try:
            credentials, project = google.auth.default(["https://www.googleapis.com/auth/cloud-platform"])
        except google.auth.exceptions.GoogleAuthError as error:
            raise _service_error(error, "before the first request") from None
    # The texts stay in the region on their way, too. Source: the service's page on regional endpoints.
    host = "dlp.googleapis.com" if region == "global" else f"dlp.{region}.rep.googleapis.com"
    options = {"api_endpoint": host}
    return dlp_v2.DlpServiceClient(transport="rest", client_options=options, credentials=credentials), project


def _service_error(failure: BaseException, place: str) -> StageError:
    """Returns the error that tells what to do after a failure. It holds no word of the failure's message."""
    fixes = (_FIXES[base.__name__] for base in type(failure).__mro__ if base.__name__ in _FIXES)
    problem = f"Google Sensitive Data Protection failed with {type(failure).__name__} {place}"
    return StageError(problem, next(fixes, "Run the command again"))


def _halve(rows: Rows) -> tuple[Rows, Rows]:
    """Splits the rows of a request into two halves. Splits the text of a single row.

    Raises StageError if that text is short: only a template can limit the findings of so short a text.
    """
    if half := len(rows) // 2:
        return rows[:half], rows[half:]
    index, start, text = rows[0]
    if len(text) <= 2 * OVERLAP:
        problem = f"Google Sensitive Data Protection truncates its findings in a text of {len(text)} characters"
        raise StageError(problem, "Remove the limits on findings from the inspect template")
    first = len(text) // 2 - OVERLAP // 2
    return [(index, start, text[: first + OVERLAP])], [(index, start + first, text[first:])]


def _batch_rows(texts: Sequence[str]) -> Iterator[Rows]:
    """Yields the rows of each request, within MAX_BYTES."""
    rows: Rows = []
    size = 0
    for index, text in enumerate(texts):
        valid = text.encode("utf-8", "replace").decode()  # half a surrogate pair becomes "?"
        for start, row in split_windows(valid, WINDOW, OVERLAP):
            row_size = len(json.dumps(row)) + ROW_BYTES
            if rows and size + row_size > MAX_BYTES:
                yield rows
                rows, size = [], 0
            rows.append((index, start, row))
            size += row_size
    if rows:
        yield rows
