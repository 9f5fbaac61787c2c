"""Every value here is made up; those of a vendor's documentation are marked as examples there."""

import pytest
from tests.privacy.detection import detect, detect_values

SECRETS = [
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY",
    "id AKIAQYLPMN5HFIRT4WZB.",
    "aws_secret_access_key = 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",
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYQ4tZ8pLmKe",
    "ghp_" + "a1B2" * 9,
    "x=github_pat_" + "a1B2" * 6,
    "glpat-" + "a1B2" * 5,
    "key=AIza" + "SyA1b" * 7,
    "xoxb-1234567890-abc",
    "https://hooks.slack.com/services/T00000000/B0/XXX",
    "sk-proj-" + "Ab1_" * 9,
    "sk_live_" + "a1" * 12,
    "hf_" + "aB3d" * 9,
    "npm_" + "aB3d" * 9,
    "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlMTIz",
    "Authorization: Bearer a1b2c3d4e5f6g7h8i9j0",
    "postgres://app:s3cr3tPw@db.internal:5432/x",
    "curl -u admin:letmein99 http://x",
    'password="opensesame"',
    "PASSWORD=hunter2",
    "db_password = 'abc!'",
    "password: s3cretword",
    "password: opensesame",
    '{"password": "opensesame"}',
    "the api_key=qwertyuiop",
    "my password is hunter2",
    "login bob, password jt6o0NpUmk!VO*25",
    "Passwort: Sonnenschein2024!",
    "mein Passwort lautet Blume#77x",
    "mot de passe : Soleil@75",
    "mi contraseña es Gato_2020",
    "la mia password è Pippo123!",
    "senha: Flor#123",
    "wachtwoord is Tulp2021!",
    "Mitt lösenord är MYul%+Vtf*!Zob7",
    "är mYul%+Vtf*!Zob7 ett starkt lösenord",
    "changed the password of the router to 7Ful+kM!e yesterday",
    "hasło: Kotek!99",
    "lösenord: Sommar2022",
    "api key for staging is 8f3d9a7b6c5e4d3f2a1b0c9d8e7f6a5b",
    "my PIN is 4821",
    "CVV: 294",
    "the PIN that the bank sent me is printed as 7301",
    "hab 4419 als PIN eingegeben",
    "أدخلت 4419 كرقم سري فابتلع الجهاز البطاقة",
    "我输入4419当取款密码，提示太简单",
    "банк прислал ПИН, 7301, не подходит",
    "the portal refuses Kobalt77! for my account",
    "网站不接受Kobalt77!作为我的账号口令",
    "I can't log in any more, pelusa-tomi-47 used to work",
    "パスワードhanabi0817で入れなくなった",
    "passphrase: orange tractor window seven",
]
NONE = [
    "def login(user, password): return check(user, password)",
    "KeyError: 'surname' in the login page",
    "log in again after commit 9f8e7d6b and md5 6e6bc4e49dd477ebc98ef4046c067b5f",
    "the login pod says ImagePullBackOff",
    "password = input('Password: ')",
    "password = None",
    "if password == expected:",
    "password: str",
    "The password: it must not be short.",
    "The password must have at least 12 characters and one digit.",
    "task-management-system-for-small-teams and sk-fading-circle-of-little-dots",
    "eyJustice is served.",
    "AKIA is a prefix; AIza too; sk- and ghp_ as well",
    "-----BEGIN CERTIFICATE-----",
    "api_key = os.environ['API_KEY']",
    "token = tokens[i] and max_tokens=256",
    "sort(key=lambda x: x1)",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 was pushed",
    "Authorization: Bearer <token>",
    "mot de passe oublié ?",
    "The key to success is 100% work",
    r"a pattern for the password: ^(?=.*[A-Z])(?=.*\d)[A-Za-z\d@$!%*?&]{8,}$",
    "PIN codes came in 1967 with the cash machines",
    "log in and check x1&&Y2||z3",
    "ssh to web-server-01 with your account",
    "A password holds A-Z, a-z, 0-9 and one of !@#$%^&*",
]


@pytest.mark.parametrize("text", SECRETS)
def test_found(text):
    assert detect_values("SECRET", text)
    assert detect_values("SECRET", f"before that\n{text}\nafter it")


@pytest.mark.parametrize("text", NONE)
def test_clean(text):
    assert detect(text) == []


def test_the_whole_token_is_covered():
    token = "ghp_" + "a1B2" * 9
    assert detect_values("SECRET", f"use {token} here") == [token]
    block = "-----BEGIN PRIVATE KEY-----\nAAAA\nBBBB\n-----END PRIVATE KEY-----"
    assert detect_values("SECRET", f"x\n{block}\ny") == [block]
