"""A detector that sends texts to Google Sensitive Data Protection (DLP). THE RAW PROMPTS LEAVE THIS MACHINE.

It runs only if the recipe names it. One request holds many texts, as the rows of a table. The service accepts at most
0.5 MB and 50,000 values in a request, and returns at most 3,000 findings. If a response is truncated, the detector
halves the request and sends both halves. If the quota is used up, it retries with backoff.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from eyas.base.errors import StageError, UsageError
from eyas.privacy.span import Span, split_windows
from eyas.privacy.word_lists import read_kinds

MAX_BYTES = 400_000  # of text in a request; the service limits the whole request to 0.5 MB
MAX_ROWS = 5_000
MAX_FINDINGS = 3_000
ROW_BYTES = 64  # an upper bound of the bytes that each row adds to its text
WINDOW = 50_000  # characters in a row
OVERLAP = 500
MAX_TRIES = 6
FIRST_WAIT_S = 1.0
_SCORES = {"VERY_LIKELY": 1.0, "LIKELY": 0.8, "POSSIBLE": 0.5, "UNLIKELY": 0.3, "VERY_UNLIKELY": 0.1}
# The service's documentation does not list the languages of PERSON_NAME; eyas relies on these.
NAME_LANGUAGES = frozenset("de en es fr it ja ko nl pl pt sv zh".split())  # noqa: SIM905
_RETRIED = ("ResourceExhausted", "TooManyRequests", "ServiceUnavailable", "DeadlineExceeded", "InternalServerError")

Rows = list[tuple[int, int, str]]  # index of the text, where the row starts in it, the row


class DlpDetector:
    """A detector that calls the DLP service of a Google Cloud project."""

    def __init__(self, project: str, client: Any = None, sleep: Callable[[float], None] = time.sleep) -> None:
        """Connects to the service. Raises UsageError if the package google-cloud-dlp is not installed.

        Args:
            project: Id of the Google Cloud project.
            client: A DlpServiceClient; None builds one.
            sleep: A function that waits for a number of seconds.
        """
        if client is None:
            try:
                from google.cloud import dlp_v2  # pyright: ignore
            except ImportError:
                problem = f"The detector dlp:{project} needs the package google-cloud-dlp"
                raise UsageError(problem, "Run: pip install google-cloud-dlp") from None
            client = dlp_v2.DlpServiceClient()
        self._client, self._project, self._sleep = client, project, sleep
        self._kinds = read_kinds("google")
        self.name = f"dlp {','.join(self._kinds)}"
        self.name_languages: frozenset[str] = NAME_LANGUAGES

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Returns one list of spans for each text. Raises StageError if the service fails."""
        found: list[list[Span]] = [[] for _ in texts]
        for rows in _batch_rows(texts):
            self._inspect(rows, found)
        return found

    def _inspect(self, rows: Rows, found: list[list[Span]]) -> None:
        result = self._request(rows).result
        findings = list(result.findings)
        truncated = bool(getattr(result, "findings_truncated", False)) or len(findings) >= MAX_FINDINGS
        halves = _halve(rows) if truncated else ()
        for half in halves:
            self._inspect(half, found)
        if halves:
            return
        for finding in findings:
            kind = self._kinds.get(finding.info_type.name)
            if kind is None:
                continue
            score = _SCORES.get(getattr(finding.likelihood, "name", str(finding.likelihood)), 0.5)
            location = finding.location
            index, offset, text = rows[int(location.content_locations[0].record_location.table_location.row_index)]
            start = int(location.codepoint_range.start)
            end = min(int(location.codepoint_range.end), len(text))
            if start < end:
                found[index].append(Span(offset + start, offset + end, kind, score))

    def _request(self, rows: Rows) -> Any:
        values = [{"values": [{"string_value": text}]} for *_, text in rows]
        request = {
            "parent": f"projects/{self._project}/locations/global",
            "inspect_config": {
                "info_types": [{"name": name} for name in self._kinds],
                "min_likelihood": "POSSIBLE",
                "include_quote": False,  # the response holds positions, no values
                "limits": {"max_findings_per_request": MAX_FINDINGS},
            },
            "item": {"table": {"headers": [{"name": "text"}], "rows": values}},
        }
        failure = ""
        for attempt in range(MAX_TRIES):
            try:
                return self._client.inspect_content(request=request)
            except Exception as error:  # its message may quote the request
                failure = type(error).__name__
            if failure not in _RETRIED:
                break
            if attempt + 1 < MAX_TRIES:
                self._sleep(FIRST_WAIT_S * 2**attempt)
        problem = f"Google Sensitive Data Protection failed with {failure} for the project {self._project}"
        raise StageError(problem, "Check its permissions and quota, then run the command again")


def _halve(rows: Rows) -> tuple[Rows, ...]:
    """Splits the rows of a request into two halves. Splits the text of a single row; returns () if it is short."""
    half = len(rows) // 2
    if half:
        return rows[:half], rows[half:]
    index, start, text = rows[0]
    first = len(text) // 2 - OVERLAP // 2
    if len(text) <= 2 * OVERLAP:
        return ()
    return [(index, start, text[: first + OVERLAP])], [(index, start + first, text[first:])]


def _batch_rows(texts: Sequence[str]) -> Iterator[Rows]:
    """Yields the rows of each request, within MAX_BYTES and MAX_ROWS."""
    rows: Rows = []
    size = 0
    for index, text in enumerate(texts):
        for start, row in split_windows(text, WINDOW, OVERLAP):
            row_size = len(row.encode("utf-8", "replace")) + ROW_BYTES
            if rows and (size + row_size > MAX_BYTES or len(rows) >= MAX_ROWS):
                yield rows
                rows, size = [], 0
            rows.append((index, start, row))
            size += row_size
    if rows:
        yield rows
