"""Finds secrets: API keys and private keys by their known formats, passwords and tokens by the words before them.

The words are names such as "password", "token" and "api_key" in nine languages. Every pattern takes linear time:
its repeats are bounded, possessive, or begin only at the edge of a word.
"""

import importlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from eyas.privacy.case_insensitive import CaseInsensitivePattern, PrefilteredPattern
from eyas.privacy.span import Span, split_windows
from eyas.privacy.word_lists import load_lexicon

_EDGE = r"(?<![A-Za-z0-9])"
_WORD = r"(?<![A-Za-z0-9_-])"  # where a word of key characters begins
# A digit among them tells a key from a hyphenated name ("sk-fading-circle-of-dots").
_FORMS = re.compile(
    _EDGE + r"(?:(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}(?![A-Za-z0-9])"  # AWS
    r"|gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_[A-Za-z0-9_]{22,255}|gl(?:pat|[dfr]t|ptt|cbt|soat)-[A-Za-z0-9_.-]{20,64}"
    r"|AIza[A-Za-z0-9_-]{35}|GOCSPX-[A-Za-z0-9_-]{20,40}|ya29\.[A-Za-z0-9_-]{20,500}|1//0[A-Za-z0-9_-]{30,200}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,250}|xapp-\d-[A-Za-z0-9-]{10,250}"  # Slack
    r"|(?:[rsp]k|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,250}"  # Stripe
    r"|hf_[A-Za-z0-9]{30,60}|api_org_[A-Za-z0-9]{30,60}|npm_[A-Za-z0-9]{36,60}|pypi-[A-Za-z0-9_-]{30,500}"
    r"|SG\.[A-Za-z0-9_-]{16,40}\.[A-Za-z0-9_-]{16,80}|(?:SK|AC)[0-9a-f]{32}(?![0-9a-f])|key-[0-9a-f]{32}"
    r"|\d{8,10}:AA[A-Za-z0-9_-]{33}|do[opr]_v1_[a-f0-9]{64}|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|dapi[a-f0-9]{32}"
    r"|ATATT[A-Za-z0-9_=-]{20,300}|sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{22,50}|EAA[A-Za-z0-9]{60,300}"
    r"|lin_api_[A-Za-z0-9]{30,50}|secret_[A-Za-z0-9]{40,50}|hv[sbr]\.[A-Za-z0-9_-]{24,300}"
    r"|dckr_pat_[A-Za-z0-9_-]{20,60}|glsa_[A-Za-z0-9]{32}_[a-f0-9]{8}|PMAK-[a-f0-9]{24}-[a-f0-9]{34}"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{58}|pscale_tkn_[A-Za-z0-9_.-]{30,60}|rubygems_[a-f0-9]{48}|r8_[A-Za-z0-9]{30,50}"
    r"|gsk_[A-Za-z0-9]{40,60}|xai-[A-Za-z0-9]{40,100}|pplx-[A-Za-z0-9]{40,60}|nvapi-[A-Za-z0-9_-]{50,80}"
    r"|EAAC[A-Za-z0-9]{30,300}|figd_[A-Za-z0-9_-]{30,60}"
    r"|[MNO][A-Za-z\d_-]{23,25}\.[A-Za-z\d_-]{6}\.[A-Za-z\d_-]{27,38}"  # Discord
    r"|[a-f0-9]{32}-us\d{1,2}(?![a-z0-9]))"  # Mailchimp
)
_PATTERNS = (
    _FORMS,
    re.compile(_WORD + r"sk-(?=[A-Za-z_-]{0,200}[0-9])[A-Za-z0-9_-]{20,250}"),
    re.compile(_WORD + r"eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?"),
    re.compile(r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/]{1,80}"),
    re.compile(r"discord(?:app)?\.com/api/webhooks/\d{5,25}/[\w-]{10,90}"),
    re.compile(r"otpauth://[^\s\"']{10,300}"),
    CaseInsensitivePattern(r"aws.{0,20}(?:secret|key).{0,20}[\s=:\"'][A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"),
    CaseInsensitivePattern(
        r"\b(?:bearer|basic|token|apikey) (?=[A-Za-z._~+/-]{0,60}[0-9])[A-Za-z0-9._~+/-]{16,500}={0,2}"
    ),
    CaseInsensitivePattern(r"(?:AccountKey|SharedAccessKey|SharedAccessSignature|sig)=[A-Za-z0-9+/%]{30,200}={0,2}"),
    # postgres://name:password@host
    PrefilteredPattern(
        r"[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s:@/\"'<>]{0,80}:(?!(?:password|pass|pwd|\*+|\$\{|<|\{))[^\s@/\"'<>]{3,120}@",
        r"://",
    ),
    PrefilteredPattern(
        r"(?i)(?:\bcurl\b[^\n]{0,120}|\s)(?:-u|--user)[ =][\"']?[\w.@-]{1,60}:(?!\$)[^\s\"']{3,100}", r"-u"
    ),
    CaseInsensitivePattern(
        r"\b(?:sshpass|mysql|mysqldump|psql|redis-cli|htpasswd)\b[^\n]{0,80}?\s(?:-p|-a|--password=|-pw )"
        r"['\"]?(?!\$)[^\s'\"-][^\s'\"]{3,60}"
    ),
)
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK-----|-----)?|PuTTY-User-Key-File-\d:")
_MAX_KEY_BLOCK = 20_000  # characters between the begin and the end of a key

_NAME = (
    r"(?:pass ?words?|passwd|pass[_ -]?phrase|passcode|pwd|passwort\w{0,3}|kennwort\w{0,3}|kennwörter|zugangscode"
    r"|mot de passe|mdp|code d['’]acc[èe]s|contrase[ñn]a|clave(?: de acceso| secreta)?|senha|palavra[- ]passe"
    r"|parola d['’]ordine|wachtwoord\w{0,3}|has[łl]o|hasłem|l[öo]senord\w{0,3}|secret(?:[_ -]?(?:access[_ -]?)?(?:key"
    r"|token))?|(?:private|encryption|signing|master|license|licence|account|shared|host|webhook|deploy|ssh|session"
    r"|jwt|hmac|storage|service)[_ -]?(?:key|secret|token)|api[_ -]?(?:key|secret|token)s?|app[_ -]?(?:key|secret)"
    r"|(?:access|auth|authentication|authorization|api|bearer|refresh|id|personal access|security|oauth|bot|admin"
    r"|csrf)[_ -]?token|token|client[_ -]?secret|consumer[_ -]?(?:key|secret)|credentials?|creds|db[_ -]?pass|pass|pw"
    r"|psk|wpa2?[_ -]?key|wi-?fi[_ -]?(?:key|pass\w*)|x-api-key|schlüssel|geheimnis|geheimschlüssel|zugangsdaten"
    r"|api-?schlüssel|cl[ée] (?:api|secr[èe]te)|jeton|llave|chiave(?: api| segreta)?|chave(?: api| secreta)?|sleutel"
    r"|klucz|nyckel)"
)
# One of these is part of every name above, and of that of a phrase of words.
_STEMS = """
    pass pwd kennw accès acces mdp contrase clave senha palavra parola wachtw haslo hasło hasłem lösenord losenord
    secret key token cred pw psk wpa schlüssel geheim zugang clé cle jeton llave chiave chave sleutel klucz nyckel
    mnemonic phrase semilla words wifi wi-fi
""".split()  # noqa: SIM905
# After `password =` in code that gives none away.
_NO_VALUE = re.compile(
    r"(?i)(?:(?:none|null|nil|true|false|str|string|text|varchar|char|bytes|int|integer|bool|self|this|undefined"
    r"|optional|required|process|os|env|config|settings|args|request|req|params|input|getpass|getenv|data|form|user"
    r"|props|ctx|event|values?|get_|new|hash\w*|encrypt\w*|password\w*|passwd|secret\w*|token\w*|api_?key\w*|pwd|key"
    r"|changeme|placeholder|example|dummy|redacted|xxx+|your\w*|my\w*|the|a|an|is|are|was|not|must|should|can|may|will"
    r"|and|or|for|to|in|of|see|at|with|from|has|too|reset\w*|forgot\w*|incorrect|invalid|wrong|expired|missing|empty"
    r"|length|field|manager|policy|protected|hidden|prompt|random|generate\w*|value|count|budget|limit|usage|based"
    r"|economy|ist|sind|muss|soll|und|oder|bitte|vergessen|zurücksetzen|est|doit|oublié|es|debe|olvidada|è|deve|é|jest"
    r"|är)(?![A-Za-z0-9])|\.\.\.|\*{2,}|<|\$|\{\{|%\(|%s|\[)"
)
_ASSIGNED = CaseInsensitivePattern(
    rf"(?:(?<![A-Za-z])|(?<=PG)|(?<=[a-z])(?=(?-i:[A-Z][a-z]))){_NAME}[\w-]{{0,24}}[\"'`\]*]{{0,3}}"
    r"(?:\s{0,3}:\s{0,3}(?:str|string|String|bytes))?\s{0,3}(?P<sign>:=|=>|->|=(?!=)|:(?![:/]))\s{0,3}"
    r"(?:[bru]{1,2}(?=[\"']))?(?P<quote>[\"'`“«]{0,3})(?P<value>[^\s\"'`“”«»]{3,500})"
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
# "Is ... a good password": a token of letters of both sizes, digits and marks near such a word.
_PASSWORD = CaseInsensitivePattern(
    r"pass ?w(?:or[dt]|d)|pass[- ]?phrase|kennw|mot de passe|\bmdp\b|contrase|\bclave\b|\bsenha|palavra[- ]passe"
    r"|wachtwoord|has[łl](?:[oaeu]|em)\b|l[öo]senord"
)
_TOKEN = re.compile(r"(?<![^\s\"'`“”«»:])[^\s\"'`“”«»()\[\]{}<>|\\=/]{8,64}(?![^\s\"'`“”«»])")
_REACH = 60  # characters
_RULE = re.compile(r"\(\?|\[(?:A-Z|a-z|0-9)|\\[dw]")  # a rule for passwords
_WORDS = CaseInsensitivePattern(
    r"\b(?:pass ?phrase|(?:seed|recovery|mnemonic|backup|secret)[ _-]?(?:phrase|words)|mnemonic"
    r"|wiederherstellungsphrase|frase semilla|phrase secr[èe]te)\b"
    r"[^\n:=]{0,20}(?::|=|\bis\b)\s{0,3}[\"'`“]?(?P<value>[a-z]{3,12}(?:[ -][a-z]{3,12}){3,24})"
)
_PIN = CaseInsensitivePattern(
    r"\b(?:pin|pin[ -]?code|pincode|cvv2?|cvc2?|cvn|card verification|security code|otp|one[- ]time (?:code|password)"
    r"|2fa(?: code)?|mfa code|tan|verification code|access code|prüfziffer|prüfnummer|sicherheitscode|code (?:secret"
    r"|de sécurité|pin)|c[óo]digo (?:de seguridad|de segurança|pin|de verificaci[óo]n)|codice (?:di sicurezza|pin"
    r"|segreto)|kod pin|säkerhetskod|beveiligingscode|entsperrcode|passcode|door code|gate code|alarm code"
    r"|unlock code)\b(?:[ ]?(?:number|nummer|code))?[ ]?(?:is|ist|est|es|è|é|jest|är|to|lautet|:|="
    r"|#)[: ]{0,3}[\"'`]?(?P<value>\d{3,8})(?!\d|[.,]\d)"
)
_SOFT_NAMES = re.compile(
    r"(?i)(?:pass|pw|key|clave|schlüssel|token|nyckel|sleutel|klucz|chiave|chave|llave|cl[ée]|creds?|credentials?"
    r"|jeton)\Z"
)
_DIGIT, _THREE_DIGITS = re.compile(r"[0-9]"), re.compile(r"\d{3}")
_LINE_END = re.compile(r"[\"'`]?[ \t.,;]{0,3}(?:\n|\Z)")
_TRAILING = ".,;:!?)]}>*"
_CALL = re.compile(r"[A-Za-z_][\w.]*[({\[]")
_CODE_VALUE = re.compile(r"[A-Za-z_][\w.]*[\[({]|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z")
# detect-secrets' detectors of fixed forms; its entropy and keyword detectors report too many clean texts.
_PLUGINS = """
    artifactory.ArtifactoryDetector azure_storage_key.AzureStorageKeyDetector aws.AWSKeyDetector
    cloudant.CloudantDetector discord.DiscordBotTokenDetector github_token.GitHubTokenDetector
    gitlab_token.GitLabTokenDetector ibm_cloud_iam.IbmCloudIamDetector ibm_cos_hmac.IbmCosHmacDetector
    jwt.JwtTokenDetector mailchimp.MailchimpDetector npm.NpmDetector openai.OpenAIDetector pypi_token.PypiTokenDetector
    sendgrid.SendGridDetector slack.SlackDetector softlayer.SoftlayerDetector square_oauth.SquareOAuthDetector
    stripe.StripeDetector telegram_token.TelegramBotTokenDetector twilio.TwilioKeyDetector
""".split()  # noqa: SIM905
_PLUGIN_WINDOW, _PLUGIN_OVERLAP = 2_000, 300  # characters that a plugin reads at a time; its keys are shorter
_KEY_RUN = re.compile(r"[A-Za-z0-9_./+-]{16,}")  # every form of a plugin holds one with a digit in it


def find_secrets(text: str) -> Iterator[Span]:
    """Yields the spans of secrets in a text.

    Three searches find them:
        formats: known key formats, such as "ghp_..." of GitHub, and blocks "-----BEGIN ... PRIVATE KEY".
        names: a value after a word for a secret: "password: hunter2" -> span of "hunter2".
        plugins: the detectors of the package detect-secrets for the formats of further services.
    """
    if "PRIVATE KEY" in text or "PuTTY" in text:
        yield from _find_key_blocks(text)
    for pattern in _PATTERNS:
        for match in pattern.finditer(text):
            yield Span(*match.span(), "SECRET")
    yield from _find_named(text)
    yield from _find_by_plugins(text)


def _find_key_blocks(text: str) -> Iterator[Span]:
    done = 0
    for match in _KEY_BEGIN.finditer(text):
        if match.start() >= done:
            done = min(len(text), match.end() + _MAX_KEY_BLOCK)
            end = text.find("-----END", match.end(), done)
            line_end = text.find("\n", end) if end >= 0 else done
            done = line_end if line_end >= 0 else len(text)
            yield Span(match.start(), done, "SECRET")


def _find_named(text: str) -> Iterator[Span]:
    lower = text.lower()
    if _THREE_DIGITS.search(text):
        yield from (Span(*match.span("value"), "SECRET", 0.8) for match in _PIN.finditer(text))
    if not any(stem in lower for stem in _STEMS):
        return
    for match in _ASSIGNED.finditer(text):
        is_quoted = bool(match["quote"])
        value = match["value"] if is_quoted else match["value"].rstrip(_TRAILING)
        is_soft = bool(_SOFT_NAMES.match(text[match.start() : match.start("sign")].rstrip(" \"'`]*")))
        is_last = not is_soft and bool(_LINE_END.match(text, match.end()))
        if _is_value(value, is_quoted, is_soft, match["sign"] == ":") or (is_last and _is_odd_word(value)):
            yield _span_of(match, value, 0.9)
    for match in _SAID.finditer(text):
        value = match["value"].rstrip(_TRAILING)
        is_code = _CODE_VALUE.match(value) or (_NO_VALUE.match(value) and not _is_strong_password(value))
        if len(value) >= 4 and not is_code and (_is_password(value) or (match["quote"] and _is_odd_word(value))):
            yield _span_of(match, value, 0.7)
    for match in _BESIDE.finditer(text):
        value = match["value"].rstrip(_TRAILING)
        if _is_strong_password(value) and not _CODE_VALUE.match(value):
            yield _span_of(match, value, 0.6)
    for match in _TOKEN.finditer(text) if _PASSWORD.search(text) else ():
        near = text[max(0, match.start() - _REACH) : match.end() + _REACH]
        if _is_strong_password(match[0].rstrip(_TRAILING)) and _PASSWORD.search(near):
            yield Span(*match.span(), "SECRET", 0.6)
    for match in _NEAR.finditer(text):
        if _is_random(match["value"].rstrip(_TRAILING)):
            yield Span(*match.span("value"), "SECRET", 0.7)
    yield from (Span(*match.span("value"), "SECRET", 0.8) for match in _WORDS.finditer(text))


def _span_of(match: re.Match[str], value: str, score: float) -> Span:
    return Span(match.start("value"), match.start("value") + len(value), "SECRET", score)


def _is_value(value: str, is_quoted: bool, is_soft: bool, has_colon: bool) -> bool:
    """Returns True if the value after "password =" is a secret; False if it is program code or prose.

    Args:
        value: The characters after the sign (":", "=" or an arrow).
        is_quoted: The value stands in quotation marks.
        is_soft: The word before the sign often means something else than a secret, such as "key".
        has_colon: The sign is a colon, which prose has as well: "The password: it must be long".
    """
    if len(value) < 4 or value[0] in "<$%{[(" or _RULE.search(value):
        return False
    is_password = _is_password(value)
    if _NO_VALUE.match(value) and not is_password:
        return False
    if is_quoted:
        return not is_soft or (len(value) >= 6 and (is_password or len(value) >= 8) and not value.endswith("_"))
    if _CALL.match(value) or (_CODE_VALUE.match(value) and not _is_random(value)):
        return False
    if has_colon or is_soft:
        return len(value) >= 5 and is_password
    return is_password or not any(char in value for char in "(){}[]<>;,")


def _is_odd_word(value: str) -> bool:
    """Returns True for an uncommon word of letters, such as "hunterwolf". Alone after "password:", it is a secret."""
    word = value.replace("-", "").replace("_", "")
    if not 6 <= len(word) <= 40 or not word.isalpha() or _NO_VALUE.match(value):
        return False
    return word.casefold() not in load_lexicon().common


def _is_password(value: str) -> bool:
    """Returns True if the value looks like a password and not like a word of prose.

    It has letters with a digit, with a punctuation mark or with capitals inside, or it has at least six digits.
    """
    if _RULE.search(value):
        return False
    if not any(map(str.isalpha, value)):
        return value.isdigit() and len(value) >= 6
    if any(char.isdigit() or (not char.isalnum() and char not in "'’.,-/_()") for char in value):
        return True
    return len(value) >= 8 and any(a.islower() and b.isupper() for a, b in pairwise(value))


def _is_strong_password(value: str) -> bool:
    """Returns True if the value has lower-case letters, capitals, digits and punctuation marks, as no word has."""
    tests = (str.islower, str.isupper, str.isdigit, "!#%&*+$?@^~".__contains__)
    return len(value) >= 8 and all(any(map(test, value)) for test in tests)


def _is_random(value: str) -> bool:
    """Returns True for a random key: 16 or more letters and digits, with at least 3 bits of entropy per character.

    A word, a number or a path is not random.
    """
    num_digits = sum(map(str.isdigit, value))
    if len(value) < 16 or num_digits < 3 or not any(map(str.isalpha, value)):
        return False
    if value.count("/") >= 3 or value.count(".") >= 3 or value.count("-") >= 5:
        return False
    return -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values()) >= 3.0


@cache
def _load_plugins() -> Sequence[Any]:
    classes = (name.split(".") for name in _PLUGINS)
    return [getattr(importlib.import_module(f"detect_secrets.plugins.{file}"), name)() for file, name in classes]


def _find_by_plugins(text: str) -> Iterator[Span]:
    start = 0
    for line in text.split("\n"):
        for offset, window in split_windows(line, _PLUGIN_WINDOW, _PLUGIN_OVERLAP):
            if any(_DIGIT.search(run) for run in _KEY_RUN.findall(window)):
                yield from _find_in_line(window, start + offset)
        start += len(line) + 1


def _find_in_line(line: str, start: int) -> Iterator[Span]:
    for plugin in _load_plugins():
        # One search skips most lines; analyze_string returns the values.
        if any(pattern.search(line) for pattern in plugin.denylist):
            for value in filter(None, plugin.analyze_string(line)):
                at = line.find(value)
                end = at + len(value)
                # The plugin for GitHub returns a part of the token: the span ends with the token.
                while end < len(line) and (line[end].isalnum() or line[end] in "_-"):
                    end += 1
                if at >= 0:
                    yield Span(start + at, start + end, "SECRET", 0.9)
