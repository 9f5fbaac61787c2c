"""The licence gate: may these prompts, and may this target's answers, train a head?

A policy in TOML says which licences, which authors, which public sets and which targets' licences are allowed, denied,
or need somebody to answer for them by name. Whatever it does not name is refused. The gate records and gates; it gives
no legal advice.

    claim + policy + facts -> findings -> the strictest counts -> Decision, or InputError
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from eyas.base.errors import InputError
from eyas.base.provenance import digest_json
from eyas.data.licenses.acknowledgements import Acknowledgement, PendingClaim, find_acknowledgement
from eyas.data.licenses.license_metadata import (
    LICENSE_FILE,
    SourceClaim,
    TargetClaim,
    digest_license_text,
    digest_texts,
)
from eyas.data.licenses.license_policy import (
    POLICIES,
    Expression,
    Fact,
    KnownDataset,
    PolicyTables,
    Verdict,
    find_card_license,
    find_license_link,
    load_tables,
    parse_expression,
    read_license_text,
    strictest,
)
from eyas.data.licenses.policy_file import TABLES, read_policy_file, resolve_verdicts

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
HUMAN_CREATORS = {"crowdsourced", "expert-generated"}  # values of `language_creators` on the hub's cards


@dataclass(frozen=True)
class Finding:
    """One thing that speaks for or against, and how strictly."""

    verdict: Verdict
    reason: str
    fact: Fact | None = None
    policy_entry: str | None = None  # of the policy file, which would change it: "openai under [generators]"


@dataclass(frozen=True)
class Assessment:
    """A claim and everything found about it, before anybody's acknowledgement."""

    pending: PendingClaim
    findings: tuple[Finding, ...]
    license_files: Mapping[str, str]
    license_link: str | None

    @cached_property
    def verdict(self) -> Verdict:
        """The strictest."""
        return strictest(finding.verdict for finding in self.findings)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Of the strictest verdict."""
        return tuple(dict.fromkeys(each.reason for each in self.findings if each.verdict == self.verdict))


@dataclass(frozen=True)
class LicenseDecision:
    """Why a source or a target may be used. It stands in the ledger and on the cards."""

    verdict: Literal["allowed", "acknowledged"]
    name: str
    dataset: str | None
    spdx: str  # an expression
    reason: str
    facts: tuple[Fact, ...]
    duties: tuple[str, ...]
    name_prefix: str | None  # how the name of a head trained with it must begin
    license_text: str | None  # digest
    license_files: Mapping[str, str]  # name -> digest
    license_link: str | None  # as the card has it
    revision: str | None
    claim: str  # digest: what an acknowledgement holds for
    acknowledgement: Acknowledgement | None

    def to_json(self) -> dict[str, Any]:
        """The value of `licence` in ledger.json."""
        record = asdict(self)
        return {**record, "facts": list(record["facts"]), "duties": list(self.duties)}


@dataclass(frozen=True)
class LicenseGate:
    """The shipped policy with the user's file laid over it, and the shipped facts."""

    name: str
    verdicts: Mapping[str, Mapping[str, Verdict]]  # table -> name -> verdict; ids of data sets in small letters
    tables: PolicyTables

    @staticmethod
    def load(path: Path | None = None) -> "LicenseGate":
        """The shipped policy, or the user's file over it. InputError or UsageError for a file that is wrong."""
        tables = load_tables()
        files = [POLICIES / "default.toml", *([] if path is None else [path])]
        read = [read_policy_file(each) for each in files]
        verdicts: dict[str, dict[str, Verdict]] = {table: {} for table in TABLES}
        for policy in read:
            for table in TABLES:
                verdicts[table] |= resolve_verdicts(getattr(policy, table), table, tables)
        return LicenseGate(read[-1].name or files[-1].stem, verdicts, tables)

    @cached_property
    def digest(self) -> str:
        """Over everything that decides: lists and facts."""
        return digest_json({"verdicts": self.verdicts, "tables": asdict(self.tables)})

    def decide(self, claim: SourceClaim, acknowledgements: Sequence[Acknowledgement] = ()) -> LicenseDecision:
        """Whether the source may be used. InputError where it may not, saying how that could change."""
        return self._decide(self._assess_source(claim), acknowledgements)

    def decide_target(self, claim: TargetClaim, acknowledgements: Sequence[Acknowledgement] = ()) -> LicenseDecision:
        """Whether the target's answers may train a head. InputError where they may not."""
        return self._decide(self._assess_target(claim), acknowledgements)

    def find_pending(
        self, claims: Iterable[SourceClaim | TargetClaim], acknowledgements: Sequence[Acknowledgement] = ()
    ) -> list[PendingClaim]:
        """Claims that need an acknowledgement and have none. InputError for one that none could save."""
        found = []
        for claim in claims:
            weighed = self._assess_target(claim) if isinstance(claim, TargetClaim) else self._assess_source(claim)
            self._require_not_denied(weighed)
            if weighed.verdict == "acknowledge" and find_acknowledgement(weighed.pending, acknowledgements) is None:
                found.append(replace(weighed.pending, reasons=weighed.reasons))
        return found

    # --- what is found of a claim ------------------------------------------------------------------------------------

    def _assess_source(self, claim: SourceClaim) -> Assessment:
        assert claim.dataset or not claim.is_hub, "a source of the hub has an id"
        where = claim.dataset or claim.name
        card = claim.card or {}
        known = self.tables.find_dataset(claim.dataset)
        if claim.is_hub and not (claim.revision and COMMIT.fullmatch(claim.revision)):
            raise InputError(
                f"{where} at revision {claim.revision or '(none)'}",
                "a commit of 40 hexadecimal digits: licences and contents change, branches and tags move",
                "look the commit up on the hub, read its card, and name it as the revision",
            )
        texts = {} if claim.license_text is None else {"licence": read_license_text(claim.license_text)}
        advice = "name it, for example prompts.license=MIT"
        if known is not None and known.license is not None:
            advice += f"; on {known.fact.looked_up} it was known as {known.license}: check it at your revision"
        expression, ids, findings = self._assess_statements(where, claim.license, card, texts, "licenses", advice)
        listed = self.verdicts["datasets"].get(where.lower()) if claim.dataset else None
        if listed is not None:
            entry = f"{claim.dataset} under [datasets]"
            findings = [Finding(listed, f"the policy has {entry} {listed}", known and known.fact, entry)]
        else:
            findings += self._assess_known_dataset(where, known, expression)
            findings += self._assess_authors(claim, card, known, ids)
            findings += self._assess_source_datasets(card)
            if claim.gated or any(card.get(key) for key in ("gated", "extra_gated_prompt", "extra_gated_fields")):
                findings.append(Finding("acknowledge", "the set is gated: whoever fetched it accepted terms"))
        pending = PendingClaim(
            "prompts", claim.name, claim.dataset, str(expression), ids, digest_license_text(texts), claim.revision
        )
        return Assessment(pending, tuple(findings), digest_texts(texts), find_license_link(card))

    def _assess_target(self, claim: TargetClaim) -> Assessment:
        families = list(dict.fromkeys(filter(None, map(self.tables.find_target, claim.names))))
        by_type = [each for each in self.tables.target if claim.model_type in each.model_types]
        advice = "name it: target.license=..."
        for family in (families or by_type)[:1]:
            advice += (
                f"; targets of the family {family.name} had {family.license} on {family.fact.looked_up}: check yours"
            )
        licenses = {name: text for name, text in claim.texts.items() if LICENSE_FILE.fullmatch(name)}
        expression, ids, findings = self._assess_statements(
            f"target {claim.name}", claim.license, claim.card, licenses, "targets", advice
        )
        for family in families:
            findings.append(Finding("allow", f"its name is one of {family.name}", family.fact))
            if family.license not in ids:
                # A fine-tune's card may name a milder licence than what it was made from allows.
                findings += self._assess_licenses((family.license,), "targets")
                ids = (*ids, family.license)
        pending = PendingClaim(
            "target", claim.name, None, str(expression), ids, digest_license_text(claim.texts), claim.revision
        )
        return Assessment(pending, tuple(findings), digest_texts(claim.texts), find_license_link(claim.card))

    def _assess_statements(
        self,
        where: str,
        named: str | None,
        card: Mapping[str, Any],
        texts: Mapping[str, bytes],
        table: str,
        advice: str,
    ) -> tuple[Expression, tuple[str, ...], list[Finding]]:
        """The licence as the recipe, the card and the licence's own text state it, in this order of weight.

        Where two of them differ, both count, and somebody must answer for the difference.
        """
        recognised = dict.fromkeys(name for text in texts.values() for name in self.tables.recognize(text))
        statements = {
            "the recipe": (named or "").strip(),
            "the card": find_card_license(card) or "",
            "the licence's text": " AND ".join(recognised),
        }
        statements = {who: stated for who, stated in statements.items() if stated}
        if not statements:
            raise InputError(f"no licence for {where}", "a licence that the policy names; unknown means refuse", advice)
        (first, stated), *others = statements.items()

        def verdict(name: str) -> Verdict:
            return self.verdicts[table].get(name, "deny")

        expression = self._parse(stated, where)
        ids = expression.weigh(verdict)
        findings = self._assess_licenses(ids, table)
        for who, other in others:
            reason = f"{first} says {expression}, but {who} says {other}"
            try:
                extra = self._parse(other, where).weigh(verdict)
            except InputError:
                findings.append(Finding("acknowledge", reason))  # "other", "unknown", or nobody's licence
                continue
            if not set(extra) <= set(expression.ids):
                findings += [Finding("acknowledge", reason), *self._assess_licenses(extra, table)]
                ids = tuple(dict.fromkeys((*ids, *extra)))
        return expression, ids, findings

    def _parse(self, text: str, where: str) -> Expression:
        listed = {name.lower(): name for table in ("licenses", "targets") for name in self.verdicts[table]}

        def resolve(spelling: str) -> str | None:
            found = self.tables.find_license(spelling)
            return listed.get(spelling.lower()) if found is None else found.id

        return parse_expression(text, where, resolve, self.tables.near_licenses)

    def _assess_licenses(self, ids: Iterable[str], table: str) -> list[Finding]:
        findings = []
        for name in ids:
            verdict = self.verdicts[table].get(name)
            entry = self.tables.find_license(name)
            said = {None: "is not named by", "allow": "is allowed by", "deny": "is denied by"}
            reason = f"{name} {said.get(verdict, 'needs an acknowledgement under')} [{table}]"
            findings.append(Finding(verdict or "deny", reason, entry and entry.fact, f"{name} under [{table}]"))
        return findings

    def _assess_known_dataset(self, dataset: str, known: KnownDataset | None, expression: Expression) -> list[Finding]:
        if known is None:
            return []
        entry = f"{dataset} under [datasets]"
        findings = [Finding(known.verdict, f"{known.name}: {known.why}", known.fact, entry)]
        if known.license is not None and str(expression) != known.license:
            since = f" since {known.since}" if known.since else ""
            was = ", which it had before" if str(expression) in known.former else ""
            reason = f"its licence is said to be {expression}{was}, but was known as {known.license}{since}"
            findings.append(Finding("acknowledge", reason))
        return findings

    def _assess_authors(
        self, claim: SourceClaim, card: Mapping[str, Any], known: KnownDataset | None, ids: Iterable[str]
    ) -> list[Finding]:
        """Who wrote the prompts: as known of the set, as its licence implies, or as the card says."""
        licenses = filter(None, map(self.tables.find_license, ids))
        families = [entry.generator for entry in licenses if entry.generator is not None]
        if known is not None:
            families += known.authors
        elif not families:
            creators = card.get("language_creators")
            stated = {str(each) for each in (creators if isinstance(creators, list) else [creators]) if each}
            by_people = bool(stated) and stated <= HUMAN_CREATORS
            is_public = claim.dataset is not None or claim.is_hub
            families = ["human" if by_people else "unknown" if is_public or stated else "unstated"]
        findings = []
        for family in dict.fromkeys(families):
            entry = self.tables.find_generator(family)
            verdict = self._author_verdict(family)
            name = entry.name if entry else family
            listing = f"{family} under [generators]"
            findings.append(Finding(verdict, f"who wrote the prompts: {name}", entry and entry.fact, listing))
        return findings

    def _author_verdict(self, family: str) -> Verdict:
        return self.verdicts["generators"].get(family, "deny")

    def _assess_source_datasets(self, card: Mapping[str, Any]) -> list[Finding]:
        """The sets that the card says this one was made from."""
        stated = card.get("source_datasets")
        findings = []
        for part in stated if isinstance(stated, list) else [stated] if stated else []:
            name = str(part).rpartition("|")[2].removeprefix("other-")
            if name in ("original", "extended"):
                continue
            known = self.tables.find_dataset(name)
            listed = self.verdicts["datasets"].get(name.lower())
            if listed is not None:
                verdict, why = listed, "as the policy lists it"
            elif known is not None:
                verdict, why = strictest([known.verdict, *map(self._author_verdict, known.authors)]), known.why
            else:
                verdict, why = "acknowledge", "nothing is known of it"
            reason, entry = f"it was made from {known.name if known else name}: {why}", f"{name} under [datasets]"
            findings.append(Finding(verdict, reason, known and known.fact, entry))
        return findings

    # --- what is decided ---------------------------------------------------------------------------------------------

    def _require_not_denied(self, weighed: Assessment) -> None:
        if weighed.verdict != "deny":
            return
        pending = weighed.pending
        entries = [each.policy_entry for each in weighed.findings if each.verdict == "deny" and each.policy_entry]
        if pending.dataset is not None:
            entries = [f"{pending.dataset} under [datasets]"]  # decides alone
        raise InputError(
            f"{pending.kind} {pending.dataset or pending.name}: {'; '.join(weighed.reasons)}",
            f"what the policy '{self.name}' allows",
            "take another; or, if whoever may decide that has cleared it, "
            f"list {' and '.join(dict.fromkeys(entries))} as acknowledge in the file that prompts.policy names",
        )

    def _decide(self, weighed: Assessment, acknowledgements: Sequence[Acknowledgement]) -> LicenseDecision:
        self._require_not_denied(weighed)
        pending = weighed.pending
        acknowledgement = find_acknowledgement(pending, acknowledgements) if weighed.verdict == "acknowledge" else None
        if weighed.verdict == "acknowledge" and acknowledgement is None:
            raise InputError(
                f"{pending.kind} {pending.dataset or pending.name}, for which somebody must answer: "
                f"{'; '.join(weighed.reasons)}",
                f"an acknowledgement of claim {pending.digest}",
                "read the licence, and run the command again with --acknowledge 'NAME' of whoever answers for it",
            )
        licenses = [entry for entry in map(self.tables.find_license, pending.counted) if entry is not None]
        return LicenseDecision(
            verdict="allowed" if acknowledgement is None else "acknowledged",
            name=pending.name,
            dataset=pending.dataset,
            spdx=pending.license,
            reason="; ".join(weighed.reasons),
            facts=tuple(dict.fromkeys(each.fact for each in weighed.findings if each.fact is not None)),
            duties=tuple(dict.fromkeys(duty for entry in licenses for duty in entry.duties)),
            # "Llama 3" asks more than "Llama", and satisfies both.
            name_prefix=max((entry.name_prefix for entry in licenses if entry.name_prefix), key=len, default=None),
            license_text=pending.license_text,
            license_files=weighed.license_files,
            license_link=weighed.license_link,
            revision=pending.revision,
            claim=pending.digest,
            acknowledgement=acknowledgement,
        )
