"""Google Sensitive Data Protection as a detector. Opt-in: THE RAW PROMPTS LEAVE THE MACHINE and go to that service.

Many texts travel in one request as the rows of a table: at most 0.5 MB and 50,000 values a request. An answer holds at
most 3,000 findings; where it was cut there, the request is halved and sent again. A full quota is waited for.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from eyas.base.errors import StageError, UsageError
from eyas.privacy.span import Span

MAX_BYTES = 400_000  # of text in a request: 0.5 MB is the limit of the whole of it
MAX_ROWS = 5_000
MAX_FINDINGS = 3_000
ROW_BYTES = 64  # of framing a row, estimated from above
WINDOW = 50_000  # characters in a row: longer texts are cut, with an overlap
OVERLAP = 500
MAX_TRIES = 6
FIRST_WAIT_S = 1.0
# The service's names of types -> our kinds. https://cloud.google.com/sensitive-data-protection/docs/infotypes-reference
INFO_TYPES = {
    "PERSON_NAME": "PERSON",
    "LOCATION": "LOCATION",
    "STREET_ADDRESS": "ADDRESS",
    "EMAIL_ADDRESS": "EMAIL",
    "PHONE_NUMBER": "PHONE",
    "CREDIT_CARD_NUMBER": "CARD",
    "IBAN_CODE": "ACCOUNT",
    "FINANCIAL_ACCOUNT_NUMBER": "ACCOUNT",
    "US_SOCIAL_SECURITY_NUMBER": "GOVERNMENT_ID",
    "PASSPORT": "GOVERNMENT_ID",
    "GOVERNMENT_ID": "GOVERNMENT_ID",
    "AUTH_TOKEN": "SECRET",
    "GCP_CREDENTIALS": "SECRET",
    "AWS_CREDENTIALS": "SECRET",
    "AZURE_AUTH_TOKEN": "SECRET",
    "JSON_WEB_TOKEN": "SECRET",
    "PASSWORD": "SECRET",
    "ENCRYPTION_KEY": "SECRET",
    "IP_ADDRESS": "IP_ADDRESS",
}
_SCORES = {"VERY_LIKELY": 1.0, "LIKELY": 0.8, "POSSIBLE": 0.5, "UNLIKELY": 0.3, "VERY_UNLIKELY": 0.1}
# The service's documentation does not list the languages of PERSON_NAME; these are the ones that eyas relies on.
NAME_LANGUAGES: frozenset[str] = frozenset(("de", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "sv", "zh"))
_RETRIED = ("ResourceExhausted", "TooManyRequests", "ServiceUnavailable", "DeadlineExceeded", "InternalServerError")

Rows = list[tuple[int, int, str]]  # number of the text, where the row begins in it, the row


class DlpDetector:
    """Asks the service of a Google Cloud project. `client`: its DlpServiceClient; `sleep` waits seconds."""

    def __init__(self, project: str, client: Any = None, sleep: Callable[[float], None] = time.sleep) -> None:
        if client is None:
            try:
                from google.cloud import dlp_v2  # pyright: ignore
            except ImportError:
                raise UsageError(
                    "the detector dlp without its package", "google-cloud-dlp", "run: pip install google-cloud-dlp"
                ) from None
            client = dlp_v2.DlpServiceClient()
        self._client, self._project, self._sleep = client, project, sleep
        self.name = f"dlp {','.join(INFO_TYPES)}"
        self.name_languages = NAME_LANGUAGES

    def find(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[Span]]:
        """Spans for each text, in as few requests as the limits allow. Raises StageError where the service fails."""
        found: list[list[Span]] = [[] for _ in texts]
        for rows in _batches(texts):
            self._inspect(rows, texts, found)
        return found

    def _inspect(self, rows: Rows, texts: Sequence[str], found: list[list[Span]]) -> None:
        result = self._asked(rows).result
        findings = list(result.findings)
        cut = bool(getattr(result, "findings_truncated", False)) or len(findings) >= MAX_FINDINGS
        if cut and len(rows) > 1:
            half = len(rows) // 2
            self._inspect(rows[:half], texts, found)
            self._inspect(rows[half:], texts, found)
            return
        if cut and len(rows[0][2]) > 2 * OVERLAP:
            index, begin, text = rows[0]
            half = len(text) // 2
            self._inspect([(index, begin, text[: half + OVERLAP // 2])], texts, found)
            self._inspect([(index, begin + half - OVERLAP // 2, text[half - OVERLAP // 2 :])], texts, found)
            return
        for finding in findings:
            kind = INFO_TYPES.get(finding.info_type.name)
            if kind is None:
                continue
            score = _SCORES.get(getattr(finding.likelihood, "name", str(finding.likelihood)), 0.5)
            places = [place.record_location.table_location.row_index for place in finding.location.content_locations]
            index, begin, text = rows[int(places[0])]
            left = int(finding.location.codepoint_range.start)
            right = min(int(finding.location.codepoint_range.end), len(text))
            if left < right:
                found[index].append(Span(begin + left, begin + right, kind, score))

    def _asked(self, rows: Rows) -> Any:
        request = {
            "parent": f"projects/{self._project}/locations/global",
            "inspect_config": {
                "info_types": [{"name": name} for name in INFO_TYPES],
                "min_likelihood": "POSSIBLE",
                "include_quote": False,  # what was found does not come back, only where it stands
                "limits": {"max_findings_per_request": MAX_FINDINGS},
            },
            "item": {
                "table": {
                    "headers": [{"name": "text"}],
                    "rows": [{"values": [{"string_value": text}]} for *_, text in rows],
                }
            },
        }
        failure = ""
        for turn in range(MAX_TRIES):
            try:
                return self._client.inspect_content(request=request)
            except Exception as error:  # its message may quote the request
                failure = type(error).__name__
            if failure not in _RETRIED:
                break
            if turn + 1 < MAX_TRIES:
                self._sleep(FIRST_WAIT_S * 2**turn)
        raise StageError(
            f"{failure} from Google Sensitive Data Protection",
            "an answer",
            "check project, rights and quota; run again",
        )


def _batches(texts: Sequence[str]) -> Iterator[Rows]:
    rows: Rows = []
    size = 0
    for index, text in enumerate(texts):
        for begin in range(0, max(1, len(text) - OVERLAP), WINDOW - OVERLAP):
            part = text[begin : begin + WINDOW]
            part_size = len(part.encode("utf-8", "replace")) + ROW_BYTES
            if rows and (size + part_size > MAX_BYTES or len(rows) >= MAX_ROWS):
                yield rows
                rows, size = [], 0
            if part.strip():
                rows.append((index, begin, part))
                size += part_size
    if rows:
        yield rows
