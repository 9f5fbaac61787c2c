"""Secrets: keys by their form, and values behind names such as password, token, api_key in nine languages.

Every pattern takes time linear in the text: repeats are bounded, possessive, or begin at a word's edge only.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from eyas.privacy.case_insensitive import CaseInsensitivePattern, PrefilteredPattern
from eyas.privacy.lexicon import load_lexicon
from eyas.privacy.span import Span

_EDGE = r"(?<![A-Za-z0-9])"
_WORD = r"(?<![A-Za-z0-9_-])"  # where a word of key characters begins
# A digit among them tells a key from a hyphenated name ("sk-fading-circle-of-dots").
_FORMS = re.compile(
    _EDGE + r"(?:(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}(?![A-Za-z0-9])"  # AWS
    r"|gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_[A-Za-z0-9_]{22,255}|gl(?:pat|dt|rt|ptt|cbt|soat"
    r"|ft)-[A-Za-z0-9_.-]{20,64}"
    r"|AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{20,40}|ya29\.[A-Za-z0-9_-]{20,500}"
    r"|1//0[A-Za-z0-9_-]{30,200}"  # Google
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,250}|xapp-\d-[A-Za-z0-9-]{10,250}"  # Slack
    r"|(?:[rsp]k|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,250}"  # Stripe
    r"|hf_[A-Za-z0-9]{30,60}|api_org_[A-Za-z0-9]{30,60}|npm_[A-Za-z0-9]{36,60}|pypi-[A-Za-z0-9_-]{30,500}"
    r"|SG\.[A-Za-z0-9_-]{16,40}\.[A-Za-z0-9_-]{16,80}|(?:SK|AC)[0-9a-f]{32}(?![0-9a-f])|key-[0-9a-f]{32}"
    r"|\d{8,10}:AA[A-Za-z0-9_-]{33}"
    r"|do[opr]_v1_[a-f0-9]{64}|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|dapi[a-f0-9]{32}|ATATT[A-Za-z0-9_=-]{20,300}"
    r"|sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{22,50}|EAA[A-Za-z0-9]{60,300}|lin_api_[A-Za-z0-9]{30,50}"
    r"|secret_[A-Za-z0-9]{40,50}"
    r"|hv[sbr]\.[A-Za-z0-9_-]{24,300}|dckr_pat_[A-Za-z0-9_-]{20,60}|glsa_[A-Za-z0-9]{32}_[a-f0-9]{8}"
    r"|PMAK-[a-f0-9]{24}-[a-f0-9]{34}"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{58}|pscale_tkn_[A-Za-z0-9_.-]{30,60}|rubygems_[a-f0-9]{48}|r8_[A-Za-z0-9]{30,50}"
    r"|gsk_[A-Za-z0-9]{40,60}"
    r"|xai-[A-Za-z0-9]{40,100}|pplx-[A-Za-z0-9]{40,60}|nvapi-[A-Za-z0-9_-]{50,80}|EAAC[A-Za-z0-9]{30,300}"
    r"|figd_[A-Za-z0-9_-]{30,60}"
    r"|[MNO][A-Za-z\d_-]{23,25}\.[A-Za-z\d_-]{6}\.[A-Za-z\d_-]{27,38}"  # Discord
    r"|[a-f0-9]{32}-us\d{1,2}(?![a-z0-9]))"  # Mailchimp
)
_PATTERNS = (
    re.compile(_WORD + r"sk-(?=[A-Za-z_-]{0,200}[0-9])[A-Za-z0-9_-]{20,250}"),
    re.compile(_WORD + r"eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?"),
    re.compile(
        r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/]{1,80}"
        r"|discord(?:app)?\.com/api/webhooks/\d{5,25}/[\w-]{10,90}"
    ),
    CaseInsensitivePattern(r"aws.{0,20}(?:secret|key).{0,20}[\s=:\"'][A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"),
    PrefilteredPattern(
        r"(?i)\b(?:bearer|basic|token|apikey) (?=[A-Za-z._~+/-]{0,60}[0-9])[A-Za-z0-9._~+/-]{16,500}={0,2}",
        r"bearer |basic |token |apikey ",
    ),
    # postgres://name:password@host
    PrefilteredPattern(
        r"[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s:@/\"'<>]{0,80}:(?!(?:password|pass|pwd|\*+|\$\{|<"
        r"|\{))[^\s@/\"'<>]{3,120}@",
        r"://",
    ),
    PrefilteredPattern(
        r"(?i)(?:\bcurl\b[^\n]{0,120}|\s)(?:-u|--user)[ =][\"']?[\w.@-]{1,60}:(?!\$)[^\s\"']{3,100}", r"-u"
    ),
    PrefilteredPattern(
        r"(?i)\b(?:sshpass|mysql|mysqldump|psql|redis-cli|htpasswd)\b[^\n]{0,80}?\s(?:-p|-a|--password="
        r"|-pw )['\"]?(?!\$)[^\s'\"-][^\s'\"]{3,60}",
        r"sshpass|mysql|psql|redis-cli|htpasswd",
    ),
    CaseInsensitivePattern(r"(?:AccountKey|SharedAccessKey|SharedAccessSignature|sig)=[A-Za-z0-9+/%]{30,200}={0,2}"),
    re.compile(r"otpauth://[^\s\"']{10,300}"),
)
_KEY_BEGIN = re.compile(
    r"-----BEGIN (?:[A-Z0-9 ]{0,40})PRIVATE KEY(?: BLOCK)?-----|-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY"
    r"|PuTTY-User-Key-File-\d:"
)
_MAX_KEY_BLOCK = 20_000  # characters between the begin and the end of a key

_NAME = (
    r"(?:pass ?words?|passwd|pass[_ -]?phrase|passcode|pwd|passwort\w{0,3}|kennwort\w{0,3}|kennwörter|zugangscode"
    r"|mot de passe|mdp|code d['’]acc[èe]s"
    r"|contrase[ñn]a|clave(?: de acceso| secreta)?|senha|palavra[- ]passe|parola d['’]ordine|wachtwoord\w{0,3}"
    r"|has[łl]o|hasłem|l[öo]senord\w{0,3}"
    r"|secret(?:[_ -]?(?:access[_ -]?)?(?:key|token))?|(?:private|encryption|signing|master|license|licence|account"
    r"|shared|host|webhook|deploy|ssh|session|jwt|hmac|storage|service)[_ -]?(?:key|secret|token)"
    r"|api[_ -]?(?:key|secret|token)s?|app[_ -]?(?:key|secret)|(?:access|auth|authentication|authorization|api"
    r"|bearer|refresh|id|personal access|security|oauth|bot|admin|csrf)[_ -]?token|token"
    r"|client[_ -]?secret|consumer[_ -]?(?:key|secret)|credentials?|creds|db[_ -]?pass|pass|pw|psk|wpa2?[_ -]?key"
    r"|wi-?fi[_ -]?(?:key|pass\w*)|x-api-key"
    r"|schlüssel|geheimnis|geheimschlüssel|zugangsdaten|api-?schlüssel|cl[ée] (?:api|secr[èe]te)|jeton|llave"
    r"|chiave(?: api| segreta)?|chave(?: api| secreta)?|sleutel|klucz|nyckel)"
)
# One of these stands in every name above, and in that of a phrase of words.
_STEMS = (
    "pass", "pwd", "kennw", "code d", "mdp", "contrase", "clave", "senha", "palavra", "parola", "wachtw", "haslo",
    "hasło", "hasłem", "lösenord", "losenord",
    "secret", "key", "token", "cred", "pw", "psk", "wpa", "schlüssel", "geheim", "zugang", "clé ", "cle ",
    "jeton", "llave",
    "chiave", "chave", "sleutel", "klucz", "nyckel", "mnemonic", "phrase", "semilla", "words", "wifi", "wi-fi",
)  # fmt: skip
_FOUR_DIGITS = re.compile(r"\d{3}")
# What code writes behind `password =` without giving one away.
_NO_VALUE = re.compile(
    r"(?i)(?:(?:none|null|nil|true|false|str|string|text|varchar|char|bytes|int|integer|bool|self|this|undefined"
    r"|optional|required"
    r"|process|os|env|config|settings|args|request|req|params|input|getpass|getenv|data|form|user|props|ctx|event"
    r"|values?|get_|new"
    r"|hash\w*|encrypt\w*|password\w*|passwd|secret\w*|token\w*|api_?key\w*|pwd|key|changeme|placeholder|example"
    r"|dummy|redacted|xxx+"
    r"|your\w*|my\w*|the|a|an|is|are|was|not|must|should|can|may|will|and|or|for|to|in|of|see|at|with|from|has|too"
    r"|reset\w*|forgot\w*"
    r"|incorrect|invalid|wrong|expired|missing|empty|length|field|manager|policy|protected|hidden|prompt|random"
    r"|generate\w*|value|count|budget|limit|usage|based|economy"
    r"|ist|sind|muss|soll|und|oder|bitte|vergessen|zurücksetzen|est|doit|oublié|es|debe|olvidada|è|deve|é|jest|är)"
    r"(?![A-Za-z0-9])|\.\.\.|\*{2,}|<|\$|\{\{|%\(|%s|\[)"
)
_ASSIGNED = CaseInsensitivePattern(
    rf"(?:(?<![A-Za-z])|(?<=PG)"
    rf"|(?<=[a-z])(?=(?-i:[A-Z][a-z]))){_NAME}[\w-]{{0,24}}[\"'`\]*]{{0,3}}(?:\s{{0,3}}:\s{{0,3}}(?:str|string"
    rf"|String|bytes))?\s{{0,3}}"
    r"(?P<sign>:=|=>|->|=(?!=)"
    r"|:(?![:/]))\s{0,3}(?:[bru]{1,2}(?=[\"']))?(?P<quote>[\"'`“«]{0,3})(?P<value>[^\s\"'`“”«»]{3,500})"
)
_SAID = CaseInsensitivePattern(
    rf"(?<![A-Za-z]){_NAME}\b[^\n:=]{{0,40}}?(?:['’]s\b|\bis\b|\bwas\b|\bto\b|\bare\b|\bwith\b|\blautet\b"
    rf"|\bist\b|\best\b|\bes\b|\bè\b|\bé\b|\bjest\b|\bto\b|\bär\b|\bis:|\bof\b|:|=|->|→| - |,)"
    r"[ :]{0,3}(?P<quote>[\"'`“«*]{0,3})(?P<value>[^\s\"'`“”«»]{4,200})"
)
_BESIDE = CaseInsensitivePattern(rf"(?<![A-Za-z]){_NAME} {{1,2}}[\"'`“]?(?P<value>[^\s\"'`“”«»]{{8,100}})")
_NEAR = CaseInsensitivePattern(
    rf"(?<![A-Za-z]){_NAME}(?![a-z])[^\n]{{0,60}}?(?<![A-Za-z0-9+/_=.-])(?P<value>[A-Za-z0-9+/_=.~-]{{16,300}})"
    rf"(?![A-Za-z0-9+/_-])"
)
# "Is ... a good password": before or behind the word, what has letters of both sizes, digits and marks, and is no code.
_PASSWORD = CaseInsensitivePattern(
    r"pass ?w(?:or[dt]|d)|pass[- ]?phrase|kennw|mot de passe|\bmdp\b|contrase|\bclave\b|\bsenha|palavra[- ]passe"
    r"|wachtwoord|has[łl](?:[oaeu]|em)\b|l[öo]senord"
)
_TOKEN = re.compile(r"(?<![^\s\"'`“”«»:])[^\s\"'`“”«»()\[\]{}<>|\\=/]{8,64}(?![^\s\"'`“”«»])")
_REACH = 60  # characters
_PATTERN = re.compile(r"\(\?|\[(?:A-Z|a-z|0-9)|\\[dw]")  # what a password shall look like
_WORDS = CaseInsensitivePattern(
    r"\b(?:pass ?phrase|(?:seed|recovery|mnemonic|backup|secret)[ _-]?(?:phrase|words)|mnemonic"
    r"|wiederherstellungsphrase|frase semilla|phrase secr[èe]te)\b"
    r"[^\n:=]{0,20}(?::|=|\bis\b)\s{0,3}[\"'`“]?(?P<value>[a-z]{3,12}(?:[ -][a-z]{3,12}){3,24})"
)
_PIN = CaseInsensitivePattern(
    r"\b(?:pin|pin[ -]?code|pincode|cvv2?|cvc2?|cvn|card verification|security code|otp|one[- ]time (?:code"
    r"|password)|2fa(?: code)?|mfa code|tan|verification code|access code"
    r"|prüfziffer|prüfnummer|sicherheitscode|code (?:secret|de sécurité|pin)|c[óo]digo (?:de seguridad|de segurança"
    r"|pin|de verificaci[óo]n)|codice (?:di sicurezza|pin|segreto)"
    r"|kod pin|säkerhetskod|beveiligingscode|entsperrcode|passcode|door code|gate code|alarm code|unlock code)\b"
    r"(?:[ ]?(?:number|nummer|code))?[ ]?(?:is|ist|est|es|è|é|jest|är|to|lautet|:|="
    r"|#)[: ]{0,3}[\"'`]?(?P<value>\d{3,8})(?!\d|[.,]\d)"
)
_SOFT_NAMES = re.compile(
    r"(?i)(?:pass|pw|key|clave|schlüssel|token|nyckel|sleutel|klucz|chiave|chave|llave|cl[ée]|creds?|credentials?"
    r"|jeton)\Z"
)
_LINE_END = re.compile(r"[\"'`]?[ \t.,;]{0,3}(?:\n|\Z)")
_TRAILING = ".,;:!?)]}>*"
_CODE_VALUE = re.compile(r"[A-Za-z_][\w.]*[\[({]|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z")
_PLUGINS = (
    "artifactory.ArtifactoryDetector", "azure_storage_key.AzureStorageKeyDetector", "aws.AWSKeyDetector",
    "cloudant.CloudantDetector", "discord.DiscordBotTokenDetector", "github_token.GitHubTokenDetector",
    "gitlab_token.GitLabTokenDetector", "ibm_cloud_iam.IbmCloudIamDetector", "ibm_cos_hmac.IbmCosHmacDetector",
    "jwt.JwtTokenDetector", "mailchimp.MailchimpDetector", "npm.NpmDetector", "openai.OpenAIDetector",
    "pypi_token.PypiTokenDetector", "sendgrid.SendGridDetector", "slack.SlackDetector", "softlayer.SoftlayerDetector",
    "square_oauth.SquareOAuthDetector", "stripe.StripeDetector", "telegram_token.TelegramBotTokenDetector",
    "twilio.TwilioKeyDetector",
)  # fmt: skip
MAX_LINE = 2_000  # characters that a plugin sees at a time; its keys are shorter
_LINE_OVERLAP = 300


def find_secrets(text: str) -> Iterator[Span]:
    """Every secret of the text, by form, by plugin and by the name before it."""
    if "PRIVATE KEY" in text or "PuTTY" in text:
        yield from _key_blocks(text)
    for pattern in (_FORMS, *_PATTERNS):
        for match in pattern.finditer(text):
            yield Span(match.start(), match.end(), "SECRET")
    yield from _named(text)
    yield from _by_plugins(text)


def _key_blocks(text: str) -> Iterator[Span]:
    done = 0
    for match in _KEY_BEGIN.finditer(text):
        if match.start() < done:
            continue
        end = text.find("-----END", match.end(), match.end() + _MAX_KEY_BLOCK)
        if end >= 0:
            line_end = text.find("\n", end)
            done = line_end if line_end >= 0 else len(text)
        else:
            done = min(len(text), match.end() + _MAX_KEY_BLOCK)
        yield Span(match.start(), done, "SECRET")


def _named(text: str) -> Iterator[Span]:
    lower = text.lower()
    for match in _PIN.finditer(text) if _FOUR_DIGITS.search(text) else ():
        yield Span(match.start("value"), match.end("value"), "SECRET", 0.8)
    if not any(stem in lower for stem in _STEMS):
        return
    for match in _ASSIGNED.finditer(text):
        quoted = bool(match["quote"])
        value = match["value"] if quoted else match["value"].rstrip(_TRAILING)
        name = text[match.start() : match.start("sign")].rstrip(" \"'`]*")
        soft = bool(_SOFT_NAMES.match(name))
        alone = not soft and bool(_LINE_END.match(text, match.end()))
        if _is_value(value, quoted, match["sign"] == ":", soft) or (alone and _is_odd_word(value)):
            yield Span(match.start("value"), match.start("value") + len(value), "SECRET", 0.9)
    for match in _SAID.finditer(text):
        value = match["value"].rstrip(_TRAILING)
        likely = _is_password(value) or (bool(match["quote"]) and _is_odd_word(value))
        named = _NO_VALUE.match(value) and not _is_strong_password(value)
        if len(value) >= 4 and not named and likely and not _CODE_VALUE.match(value):
            yield Span(match.start("value"), match.start("value") + len(value), "SECRET", 0.7)
    for match in _BESIDE.finditer(text):
        value = match["value"].rstrip(_TRAILING)
        if _is_strong_password(value) and not _CODE_VALUE.match(value):
            yield Span(match.start("value"), match.start("value") + len(value), "SECRET", 0.6)
    for match in _TOKEN.finditer(text) if _PASSWORD.search(text) else ():
        near = text[max(0, match.start() - _REACH) : match.end() + _REACH]
        if _is_strong_password(match[0].rstrip(_TRAILING)) and _PASSWORD.search(near):
            yield Span(match.start(), match.end(), "SECRET", 0.6)
    for match in _NEAR.finditer(text):
        if _is_random(match["value"].rstrip(_TRAILING)):
            yield Span(match.start("value"), match.end("value"), "SECRET", 0.7)
    for match in _WORDS.finditer(text):
        yield Span(match.start("value"), match.end("value"), "SECRET", 0.8)


def _is_value(value: str, quoted: bool, colon: bool, soft: bool) -> bool:
    """Whether what stands behind the sign is a secret, and not code or prose."""
    if (
        len(value) < 4
        or (_NO_VALUE.match(value) and not _is_password(value))
        or value.startswith(("<", "$", "%", "{", "[", "("))
        or _PATTERN.search(value)
    ):
        return False
    if quoted:
        return not soft or (len(value) >= 6 and (_is_password(value) or len(value) >= 8) and not value.endswith("_"))
    if _CODE_VALUE.match(value) and not _is_random(value):
        return False
    if any(char in value for char in "(){}[]<>;,") and not _is_password(value):
        return False
    if any(char in value for char in "({[") and re.match(r"[A-Za-z_][\w.]*[({\[]", value):
        return False
    if colon or soft:  # prose as often as not: "The password: it must be long"
        return len(value) >= 5 and _is_password(value)
    return True


def _is_odd_word(value: str) -> bool:
    """A lower-case word that is none of the common ones: a password without digits, where nothing stands behind it."""
    plain = value.replace("-", "").replace("_", "")
    return (
        6 <= len(plain) <= 40
        and plain.isalpha()
        and not _NO_VALUE.match(value)
        and plain.casefold() not in load_lexicon().common
    )


def _is_password(value: str) -> bool:
    """Letters with digits or marks among them: what a word of prose is not."""
    if _PATTERN.search(value):
        return False
    letters = any(char.isalpha() for char in value)
    digits = any(char.isdigit() for char in value)
    marks = any(not char.isalnum() and char not in "'’.,-/_()" for char in value)
    inner = any(a.islower() and b.isupper() for a, b in pairwise(value))
    many_digits = value.isdigit() and len(value) >= 6
    return (letters and (digits or marks)) or (letters and inner and len(value) >= 8) or many_digits


def _is_strong_password(value: str) -> bool:
    """Small and capital letters, digits and marks: no word of prose or code has all four."""
    tests = (str.islower, str.isupper, str.isdigit, lambda char: char in "!#%&*+$?@^~")
    return len(value) >= 8 and all(any(test(char) for char in value) for test in tests)


def _is_random(value: str) -> bool:
    """Letters and digits mixed, with at least three bits of entropy a character: no word, no number, no path."""
    if len(value) < 16 or not any(map(str.isdigit, value)) or not any(map(str.isalpha, value)):
        return False
    counts = Counter(value)
    entropy = -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
    digits = sum(map(str.isdigit, value))
    return entropy >= 3.0 and digits >= 3 and value.count("/") < 3 and value.count(".") < 3 and value.count("-") < 5


@cache
def _plugins() -> Sequence[Any]:
    """detect-secrets' detectors of fixed forms; its entropy and keyword detectors are left out as noisy."""
    import importlib

    found = []
    for entry in _PLUGINS:
        module, name = entry.split(".")
        found.append(getattr(importlib.import_module(f"detect_secrets.plugins.{module}"), name)())
    return tuple(found)


# All of their forms need a run of key characters with a digit in it.
_KEY_RUN = re.compile(r"[A-Za-z0-9_./+-]{16,}")
_DIGIT = re.compile(r"[0-9]")


def _by_plugins(text: str) -> Iterator[Span]:
    begin = 0
    for line in text.split("\n"):
        for offset in range(0, max(1, len(line)), MAX_LINE - _LINE_OVERLAP):
            part = line[offset : offset + MAX_LINE]
            if len(part) >= 16 and any(_DIGIT.search(run) for run in _KEY_RUN.findall(part)):
                yield from _in_line(part, begin + offset)
        begin += len(line) + 1


def _in_line(line: str, begin: int) -> Iterator[Span]:
    for plugin in _plugins():
        # One search tells most lines apart; analyze_string says what exactly was found.
        if not any(pattern.search(line) for pattern in plugin.denylist):
            continue
        for value in plugin.analyze_string(line):
            at = line.find(value) if value else -1
            if at >= 0:
                yield Span(begin + at, begin + _end_of_token(line, at + len(value)), "SECRET", 0.9)


def _end_of_token(line: str, end: int) -> int:
    """The plugin for GitHub returns a part of the token: the span goes on to the token's end."""
    while end < len(line) and (line[end].isalnum() or line[end] in "_-"):
        end += 1
    return end
