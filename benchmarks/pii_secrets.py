"""Makes random secrets of the right form: keys, tokens, passwords. None of them is valid."""

import base64
import hashlib
import hmac
import json
import string
import zlib
from random import Random

BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
BASE64URL = BASE62 + "-_"
# language -> words for passwords
PASSWORD_WORDS = {
    "en": "summer tiger dragon coffee winter guitar pumpkin rocket",
    "de": "sommer hase fussball drachen kaffee winter gitarre blaubeere",
    "fr": "soleil chaton cerise bonjour tortue guitare printemps citron",
    "es": "verano tigre naranja guitarra luna conejo manzana cerveza",
    "it": "estate gattino farfalla chitarra limone vacanze pantera gelato",
    "pt": "verao gatinho estrela guitarra laranja praia sardinha pastel",
    "nl": "zomer konijn fiets pannenkoek gitaar winter stroopwafel kaas",
    "pl": "lato kotek truskawka gitara zima herbata jagoda pierogi",
    "sv": "sommar katten gitarr kanelbulle vinter jordgubbe renen kaffe",
}


def _some(rng: Random, alphabet: str, count: int) -> str:
    return "".join(rng.choices(alphabet, k=count))


def github(rng: Random) -> str:
    """Returns a GitHub token; in the short form the last six characters are a checksum."""
    if rng.random() < 0.25:
        return f"github_pat_{_some(rng, BASE62, 22)}_{_some(rng, BASE62, 59)}"
    body = _some(rng, BASE62, 30)
    number, check = zlib.crc32(body.encode()), ""
    for _ in range(6):
        number, rest = divmod(number, 62)
        check = BASE62[rest] + check
    return rng.choice(("ghp_", "ghp_", "gho_", "ghs_")) + body + check


def gitlab(rng: Random) -> str:
    """Returns a GitLab personal token."""
    return "glpat-" + _some(rng, BASE64URL[:-2], 19) + _some(rng, BASE62, 1)


def google(rng: Random) -> str:
    """Returns a Google API key."""
    return "AIza" + _some(rng, BASE64URL, 34) + _some(rng, BASE62, 1)


def slack(rng: Random) -> str:
    """Returns a Slack token of a bot or a user."""
    numbers = "-".join(_some(rng, string.digits, 12) for _ in range(2))
    return f"{rng.choice(('xoxb', 'xoxp'))}-{numbers}-{_some(rng, BASE62, 24)}"


def stripe(rng: Random) -> str:
    """Returns a Stripe secret or restricted key, live or for tests."""
    return rng.choice(("sk_live_", "sk_live_", "rk_live_", "sk_test_")) + _some(rng, BASE62, 24)


def openai(rng: Random) -> str:
    """Returns an OpenAI key in the older or the newer form."""
    if rng.random() < 0.5:
        return f"sk-{_some(rng, BASE62, 20)}T3BlbkFJ{_some(rng, BASE62, 20)}"
    return f"sk-proj-{_some(rng, BASE62, 74)}T3BlbkFJ{_some(rng, BASE62, 74)}"


def hugging_face(rng: Random) -> str:
    """Returns a Hugging Face user token."""
    return "hf_" + _some(rng, string.ascii_letters, 34)


def token(rng: Random) -> str:
    """Returns a token of one of the providers above."""
    return rng.choice((github, gitlab, google, slack, stripe, openai, hugging_face))(rng)


def aws_id(rng: Random) -> str:
    """Returns an AWS access key id."""
    return rng.choice(("AKIA", "AKIA", "ASIA")) + _some(rng, string.ascii_uppercase + "234567", 16)


def aws_secret(rng: Random) -> str:
    """Returns an AWS secret access key: forty characters of base64."""
    return _some(rng, BASE62 + "/+", 39) + _some(rng, BASE62, 1)


def jwt(rng: Random) -> str:
    """Returns a signed JSON web token."""
    header = {"alg": "HS256", "typ": "JWT"}
    claims = {"sub": _some(rng, string.digits, 10), "iat": rng.randint(1_600_000_000, 1_790_000_000), "scope": "user"}
    parts = [base64.urlsafe_b64encode(json.dumps(part, separators=(",", ":")).encode()) for part in (header, claims)]
    signed = b".".join(part.rstrip(b"=") for part in parts)
    signature = hmac.digest(rng.randbytes(32), signed, "sha256")
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def key_block(rng: Random) -> str:
    """Returns a PEM block like that of a private key, with random bytes."""
    kind = rng.choice(("RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY"))
    body = base64.b64encode(rng.randbytes(rng.choice((120, 300, 600)))).decode()
    lines = [body[start : start + 64] for start in range(0, len(body), 64)]
    return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----"])


def api_key(rng: Random) -> str:
    """Returns a key without the form of a provider: hexadecimal or base62."""
    if rng.random() < 0.5:
        return hashlib.sha256(rng.randbytes(16)).hexdigest()[: rng.choice((32, 40, 64))]
    return _some(rng, BASE62, rng.choice((32, 40)))


def password(rng: Random, language: str) -> str:
    """Returns a password of the kind that people choose, or that a password manager generates."""
    kind = rng.random()
    if kind < 0.3:
        alphabet = BASE62 + "!#%*+-?_"
        return (
            rng.choice(string.ascii_letters) + _some(rng, alphabet, rng.randint(9, 14)) + _some(rng, string.digits, 1)
        )
    word = rng.choice(PASSWORD_WORDS[language].split())
    if kind < 0.6:
        return word.capitalize() + str(rng.randint(10, 2030)) + rng.choice("!?#*$")
    if kind < 0.8:
        return word + str(rng.randint(10, 9999))
    return word.replace("a", "4").replace("e", "3").replace("o", "0").capitalize() + "_" + str(rng.randint(100, 999))
