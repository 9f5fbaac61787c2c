"""Decides whether prompts and a target's answers may be used to train a head. `eyas prompts` and the recipe call it.

A policy (`license_policy.py`) says which licenses, authors, public datasets and targets are allowed, denied, or need an
acknowledgement by a named person. Everything else is rejected. The gate is not legal advice.

    claim + policy + facts -> findings -> the strictest verdict -> LicenseDecision or InputError
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from eyas.base.errors import InputError
from eyas.data.licenses import license_metadata as metadata
from eyas.data.licenses.acknowledgements import Acknowledgement, PendingClaim, find_acknowledgement
from eyas.data.licenses.license_metadata import Expression, SourceClaim, TargetClaim, digest_texts, find_license_link
from eyas.data.licenses.license_policy import Fact, KnownDataset, LicensePolicy, Verdict, strictest

HUMAN_CREATORS = {"crowdsourced", "expert-generated"}  # values of `language_creators` on the hub's cards


@dataclass(frozen=True)
class Finding:
    """A verdict on one aspect of a claim, such as its license or the authors of the prompts.

    Attributes:
        verdict: "allow", "acknowledge" or "deny".
        reason: The reason, for messages.
        fact: The shipped fact behind the verdict, if there is one.
        policy_entry: The policy entry that a user can change for another verdict: "openai under [generators]".
    """

    verdict: Verdict
    reason: str
    fact: Fact | None = None
    policy_entry: str | None = None


@dataclass(frozen=True)
class Assessment:
    """A claim with all findings about it, before any acknowledgement."""

    pending: PendingClaim
    findings: tuple[Finding, ...]
    license_files: Mapping[str, str]

    @cached_property
    def verdict(self) -> Verdict:
        """The strictest verdict of all findings."""
        return strictest(finding.verdict for finding in self.findings)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of the strictest verdict."""
        return tuple(dict.fromkeys(each.reason for each in self.findings if each.verdict == self.verdict))

    @property
    def reason(self) -> str:
        """The reasons as one text, for messages and the ledger."""
        return "; ".join(self.reasons)

    @property
    def subject(self) -> str:
        """The name of the source or target in messages."""
        name = self.pending.dataset or self.pending.name
        return f"target {name}" if self.pending.kind == "target" else f"prompts of {name}"


@dataclass(frozen=True)
class LicenseDecision:
    """The decision that a source or a target may be used, with its reasons. The ledger and the cards contain it."""

    verdict: Literal["allowed", "acknowledged"]
    name: str
    dataset: str | None
    spdx: str  # an SPDX expression
    reason: str
    facts: tuple[Fact, ...]
    duties: tuple[str, ...]
    name_prefix: str | None  # the required beginning of a head's name
    license_text: str | None  # digest
    license_files: Mapping[str, str]  # name -> digest
    license_link: str | None  # from the card
    revision: str | None
    claim: str  # the digest that an acknowledgement names
    acknowledgement: Acknowledgement | None

    def to_json(self) -> dict[str, Any]:
        """Returns the decision as ledger.json stores it, under the key `licence`."""
        return asdict(self) | {"facts": [asdict(fact) for fact in self.facts], "duties": list(self.duties)}


@dataclass(frozen=True)
class LicenseGate:
    """The license gate of one policy."""

    policy: LicensePolicy

    @staticmethod
    def load(path: str | Path | None = None) -> "LicenseGate":
        """Loads the shipped policy and the user's file, which overrides it. Raises InputError or UsageError."""
        return LicenseGate(LicensePolicy.load(None if path is None else Path(path)))

    def decide(self, claim: metadata.Claim, acknowledgements: Sequence[Acknowledgement] = ()) -> LicenseDecision:
        """Returns the decision on a claim. Raises InputError if it is denied, or lacks an acknowledgement."""
        assessment = self._assess(claim)
        pending = assessment.pending
        acknowledgement = None
        if assessment.verdict == "acknowledge":
            acknowledgement = find_acknowledgement(pending, acknowledgements)
            if acknowledgement is None:
                problem = f"The license gate needs an acknowledgement for the {assessment.subject}: {assessment.reason}"
                fix = "Read the license, then add --acknowledge 'YOUR NAME' to the command"
                raise InputError(problem, f"{fix} (claim {pending.digest})")
        licenses = list(filter(None, map(self.policy.tables.find_license, pending.counted)))
        return LicenseDecision(
            verdict="allowed" if acknowledgement is None else "acknowledged",
            name=pending.name,
            dataset=pending.dataset,
            spdx=pending.license,
            reason=assessment.reason,
            facts=tuple(dict.fromkeys(each.fact for each in assessment.findings if each.fact is not None)),
            duties=tuple(dict.fromkeys(duty for entry in licenses for duty in entry.duties)),
            # "Llama 3" requires more than "Llama", and satisfies both.
            name_prefix=max((entry.name_prefix for entry in licenses if entry.name_prefix), key=len, default=None),
            license_text=pending.license_text,
            license_files=assessment.license_files,
            license_link=find_license_link(claim.card),
            revision=pending.revision,
            claim=pending.digest,
            acknowledgement=acknowledgement,
        )

    def find_pending(
        self, claims: Iterable[metadata.Claim], acknowledgements: Sequence[Acknowledgement] = ()
    ) -> list[PendingClaim]:
        """Returns the claims that still need an acknowledgement. Raises InputError for a denied claim."""
        return [
            replace(each.pending, reasons=each.reasons)
            for each in map(self._assess, claims)
            if each.verdict == "acknowledge" and find_acknowledgement(each.pending, acknowledgements) is None
        ]

    def _assess(self, claim: metadata.Claim) -> Assessment:
        """Returns the findings about a claim. Raises InputError for a denied claim."""
        assessment = self._assess_target(claim) if isinstance(claim, TargetClaim) else self._assess_source(claim)
        if assessment.verdict == "deny":
            entries = [each.policy_entry for each in assessment.findings if each.verdict == "deny"]
            if assessment.pending.dataset is not None:
                entries = [f"{assessment.pending.dataset} under [datasets]"]  # decides alone
            problem = f"The license policy '{self.policy.name}' rejects the {assessment.subject}: {assessment.reason}"
            listed = " and ".join(dict.fromkeys(filter(None, entries)))
            fix = f"If its use is cleared, list {listed} as acknowledge in the file of prompts.policy"
            raise InputError(problem, f"Use another one. {fix}")
        return assessment

    # --- claims ------------------------------------------------------------------------------------------------------

    def _assess_source(self, claim: SourceClaim) -> Assessment:
        name = claim.dataset or claim.name
        known = self.policy.tables.find_dataset(claim.dataset)
        texts = {} if claim.license_text is None else {"licence": claim.license_text}
        hint = ""
        if known is not None and known.license is not None:
            hint = f". On {known.fact.looked_up} it was {known.license}: check that for your revision"
        fix = f"Set prompts.license=SPDX-ID, for example prompts.license=MIT{hint}"
        expression, ids, findings = self._assess_statements(name, claim, texts, "licenses", fix)
        listed = self.policy.verdicts["datasets"].get(name.lower()) if claim.dataset else None
        if listed is not None:
            entry = f"{claim.dataset} under [datasets]"
            findings = [Finding(listed, f"the policy lists {entry} as {listed}", known and known.fact, entry)]
        else:
            findings += self._assess_known_dataset(name, known, expression)
            findings += self._assess_authors(claim, known, ids)
            findings += self._assess_source_datasets(claim.card)
            if any(claim.card.get(key) for key in ("gated", "extra_gated_prompt", "extra_gated_fields")):
                findings.append(Finding("acknowledge", "the dataset is gated: its download means accepting terms"))
        digest = metadata.digest_license_text(texts)
        pending = PendingClaim("prompts", claim.name, claim.dataset, str(expression), ids, digest, claim.revision)
        return Assessment(pending, tuple(findings), digest_texts(texts))

    def _assess_target(self, claim: TargetClaim) -> Assessment:
        tables = self.policy.tables
        families = list(dict.fromkeys(filter(None, map(tables.find_target, claim.names))))
        by_type = [each for each in tables.target if claim.model_type in each.model_types]
        fix = "Set target.license=SPDX-ID, for example target.license=MIT"
        for family in (families or by_type)[:1]:
            fix += f". Targets of the family {family.name} had {family.license} on {family.fact.looked_up}: check yours"
        texts = {name: text for name, text in claim.texts.items() if metadata.LICENSE_FILE.fullmatch(name)}
        expression, ids, findings = self._assess_statements(f"target {claim.name}", claim, texts, "targets", fix)
        for family in families:
            findings.append(Finding("allow", f"its name belongs to {family.name}", family.fact))
            if family.license not in ids:
                # A fine-tune's card may name a milder license than its base model allows.
                findings += self._assess_licenses((family.license,), "targets")
                ids = (*ids, family.license)
        digest = metadata.digest_license_text(claim.texts)
        pending = PendingClaim("target", claim.name, None, str(expression), ids, digest, claim.revision)
        return Assessment(pending, tuple(findings), digest_texts(claim.texts))

    # --- findings ----------------------------------------------------------------------------------------------------

    def _assess_statements(
        self, owner: str, claim: metadata.Claim, texts: Mapping[str, bytes], table: str, fix: str
    ) -> tuple[Expression, tuple[str, ...], list[Finding]]:
        """Checks what the recipe, the card and the license text say about the license, in this order.

        If two of them differ, the licenses of both are checked, and the difference needs an acknowledgement.

        Args:
            owner: The name of the source or target, for messages.
            claim: The claim.
            texts: The license files, by name.
            table: The table of the policy: "licenses" or "targets".
            fix: The fix of the error if there is no statement.

        Returns:
            The first statement, the ids of all licenses that were checked, and the findings.
        """
        recognized = dict.fromkeys(name for text in texts.values() for name in self.policy.tables.recognize(text))
        statements = {
            "the recipe": (claim.license or "").strip(),
            "the card": metadata.find_card_license(claim.card) or "",
            "the license's text": " AND ".join(recognized),
        }
        statements = {place: stated for place, stated in statements.items() if stated}
        if not statements:
            raise InputError(f"There is no license on record for {owner}, and unknown licenses are rejected", fix)
        (first, stated), *others = statements.items()

        def verdict(name: str) -> Verdict:
            return self.policy.verdicts[table].get(name, "deny")

        expression = metadata.parse_expression(stated, owner, self.policy)
        ids = expression.select_ids(verdict)
        findings = self._assess_licenses(ids, table)
        for place, other in others:
            reason = f"{first} says {expression}, but {place} says {other}"
            try:
                extra = metadata.parse_expression(other, owner, self.policy).select_ids(verdict)
            except InputError:
                findings.append(Finding("acknowledge", reason))  # "other", "unknown", or an unknown license
                continue
            if not set(extra) <= set(expression.ids):
                findings += [Finding("acknowledge", reason), *self._assess_licenses(extra, table)]
                ids = tuple(dict.fromkeys((*ids, *extra)))
        return expression, ids, findings

    def _assess_licenses(self, ids: Iterable[str], table: str) -> list[Finding]:
        findings = []
        for name in ids:
            verdict = self.policy.verdicts[table].get(name)
            entry = self.policy.tables.find_license(name)
            says = {None: "is not named by", "allow": "is allowed by", "deny": "is denied by"}
            reason = f"{name} {says.get(verdict, 'needs an acknowledgement under')} [{table}]"
            findings.append(Finding(verdict or "deny", reason, entry and entry.fact, f"{name} under [{table}]"))
        return findings

    def _assess_known_dataset(self, dataset: str, known: KnownDataset | None, expression: Expression) -> list[Finding]:
        if known is None:
            return []
        findings = [Finding(known.verdict, f"{known.name}: {known.why}", known.fact, f"{dataset} under [datasets]")]
        if known.license is not None and str(expression) != known.license:
            since = f" since {known.since}" if known.since else ""
            before = " (its license before)" if str(expression) in known.former else ""
            reason = f"its license is stated as {expression}{before}, but was known as {known.license}{since}"
            findings.append(Finding("acknowledge", reason))
        return findings

    def _assess_authors(self, claim: SourceClaim, known: KnownDataset | None, ids: Iterable[str]) -> list[Finding]:
        """Checks the authors of the prompts: facts about the dataset or license name them, or else the card does."""
        licenses = filter(None, map(self.policy.tables.find_license, ids))
        families = [entry.generator for entry in licenses if entry.generator is not None]
        if known is not None:
            families += known.authors
        elif not families:
            creators = claim.card.get("language_creators")
            stated = {str(each) for each in (creators if isinstance(creators, list) else [creators]) if each}
            by_people = bool(stated) and stated <= HUMAN_CREATORS
            families = ["human" if by_people else "unknown" if claim.dataset or stated else "unstated"]
        findings = []
        for family in dict.fromkeys(families):
            entry = self.policy.tables.find_generator(family)
            reason = f"the author of the prompts: {entry.name if entry else family}"
            listing = f"{family} under [generators]"
            findings.append(Finding(self._author_verdict(family), reason, entry and entry.fact, listing))
        return findings

    def _author_verdict(self, family: str) -> Verdict:
        return self.policy.verdicts["generators"].get(family, "deny")

    def _assess_source_datasets(self, card: Mapping[str, Any]) -> list[Finding]:
        """Checks the datasets from which this dataset was made, according to its card."""
        stated = card.get("source_datasets")
        findings = []
        for part in stated if isinstance(stated, list) else [stated] if stated else []:
            name = str(part).rpartition("|")[2].removeprefix("other-")
            if name in ("original", "extended"):
                continue
            known = self.policy.tables.find_dataset(name)
            if (listed := self.policy.verdicts["datasets"].get(name.lower())) is not None:
                verdict, why = listed, "the policy lists it"
            elif known is not None:
                verdict, why = strictest([known.verdict, *map(self._author_verdict, known.authors)]), known.why
            else:
                verdict, why = "acknowledge", "nothing is known of it"
            reason = f"it was made from {known.name if known else name}: {why}"
            findings.append(Finding(verdict, reason, known and known.fact, f"{name} under [datasets]"))
        return findings
