"""Makes phone numbers (ITU-T E.164 and the national plans), e-mail addresses, user names and dates of birth."""

import unicodedata
from random import Random

from planted.checks import birth, draw

# Language: for each country the country code, the trunk prefix, and national numbers in the usual groups. "n" is a
# digit from 2 to 9. The plans are those that the countries publish through the ITU.
PHONES: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "en": (
        ("1", "", ("(n0#) n##-####", "n1#-n##-####", "n0# n## ####", "n2#.n##.####")),
        ("44", "0", ("7### ######", "7### ### ###", "20 7### ####", "161 ### ####", "1### ######")),
    ),
    "de": (("49", "0", ("15# ########", "176 ########", "30 ########", "89/######", "4321 ######", "171-#######")),),
    "fr": (("33", "0", ("6 ## ## ## ##", "7 ## ## ## ##", "1 ## ## ## ##", "4.##.##.##.##", "6########")),),
    "es": (("34", "", ("6## ### ###", "6## ## ## ##", "7########", "91 ### ## ##", "95# ######")),),
    "it": (("39", "", ("3## #######", "3## ### ####", "33########", "02 ########", "06 #### ####")),),
    "pt": (("351", "", ("91# ### ###", "96#######", "93# ## ## ##", "21# ### ###", "22# ### ###")),),
    "nl": (("31", "0", ("6 ########", "6-########", "6 ## ## ## ##", "20 ### ####", "10-#######")),),
    "pl": (("48", "", ("5## ### ###", "6##-###-###", "7########", "22 ### ## ##", "12 ### ## ##")),),
    "sv": (("46", "0", ("70-### ## ##", "73 ### ## ##", "76-#######", "8-### ### ##", "31-## ## ##")),),
    "zh": (("86", "", ("13#########", "15# #### ####", "18#-####-####", "19#########")), ("86", "0", ("21-########",))),
    "ja": (("81", "0", ("90-####-####", "80-####-####", "70########", "3-####-####", "6-####-####")),),
    "ko": (("82", "0", ("10-####-####", "10 #### ####", "10########", "2-###-####", "31-###-####")),),
    "ar": (("966", "0", ("5# ### ####", "5########", "11 ### ####")), ("20", "0", ("10########", "12 #### ####"))),
    "ru": (("7", "8", (" (9##) ###-##-##", " 9## ### ## ##", "9#########", "-9##-###-##-##", " (495) ###-##-##")),),
    "hi": (("91", "0", ("98### #####", "7#########", "63### #####", "11 #### ####")), ("91", "", ("9#########",))),
}


def phone(rng: Random, language: str) -> str:
    """Makes a phone number of the language's countries, national or with the country code."""
    code, trunk, plans = rng.choice(PHONES[language])
    number = draw(rng, rng.choice(plans)).replace("n", rng.choice("23456789"))
    form = rng.random()
    if form < 0.35:
        bare = number.strip(" -")
        return rng.choice((f"+{code} {bare}", f"+{code}{bare}", f"00{code} {bare}"))
    if form < 0.4 and trunk == "0":
        return f"+{code} (0){number}"
    return f"{trunk}{number}"


PROVIDERS = {
    "de": ("web.de", "gmx.de", "t-online.de"), "fr": ("orange.fr", "laposte.net", "free.fr"),
    "it": ("libero.it", "tiscali.it"), "pl": ("wp.pl", "onet.pl"), "pt": ("sapo.pt", "uol.com.br"),
    "nl": ("ziggo.nl", "kpnmail.nl"), "sv": ("telia.com", "bredband.net"), "ru": ("mail.ru", "yandex.ru"),
    "zh": ("qq.com", "163.com"), "ja": ("docomo.ne.jp", "yahoo.co.jp"), "ko": ("naver.com", "daum.net"),
    "en": ("btinternet.com", "comcast.net"), "es": ("telefonica.net", "ono.com"), "hi": ("rediffmail.com",),
    "ar": ("stc.com.sa",),
}  # fmt: skip
EVERYWHERE = ("gmail.com", "outlook.com", "icloud.com", "hotmail.com", "proton.me")
# Words for "at" and "dot" in written-out addresses.
SPELLED = {
    "en": (("at", "dot"), (" (at) ", " (dot) "), ("[at]", "[dot]"), (" AT ", " DOT ")),
    "de": (("at", "punkt"), (" (ät) ", " (punkt) "), ("[at]", "[punkt]"), (" at ", " dot ")),
    "fr": (("arobase", "point"), (" (at) ", " (point) "), ("[arobase]", "[point]")),
    "es": (("arroba", "punto"), (" (arroba) ", " (punto) "), ("[at]", "[dot]")),
    "it": (("chiocciola", "punto"), (" (at) ", " (punto) "), (" [chiocciola] ", " [punto] ")),
    "pt": (("arroba", "ponto"), (" (arroba) ", " (ponto) "), ("[at]", "[dot]")),
    "nl": (("apenstaartje", "punt"), (" (at) ", " (punt) "), (" at ", " punt ")),
    "pl": (("małpa", "kropka"), (" (małpa) ", " (kropka) "), ("[at]", "[dot]")),
    "sv": (("snabel-a", "punkt"), (" (at) ", " (punkt) "), (" at ", " punkt ")),
    "zh": ((" 艾特 ", " 点 "), ("(at)", "(dot)"), ("#", "."), (" AT ", " DOT ")),
    "ja": ((" アット ", " ドット "), ("(at)", "(dot)"), ("＠", "．"), ("★", ".")),
    "ko": ((" 골뱅이 ", " 점 "), ("(at)", "(dot)"), (" 앳 ", " 닷 ")),
    "ar": ((" آت ", " دوت "), (" (at) ", " (dot) "), ("[at]", "[dot]")),
    "ru": (("собака", "точка"), (" (собака) ", " (точка) "), ("[at]", "[dot]")),
    "hi": ((" एट ", " डॉट "), (" at ", " dot "), ("(at)", "(dot)")),
}
SYLLABLES = (
    "ba", "be", "bo", "da", "di", "du", "fe", "fi", "ga", "go", "ha", "jo", "ka", "ki", "la", "le", "li", "lo", "ma",
    "mi", "mo", "na", "ne", "ni", "no", "pa", "ra", "ri", "ro", "sa", "se", "so", "ta", "ti", "to", "va", "ve", "vi",
)  # fmt: skip


def ascii_name(rng: Random, name: str) -> str:
    """Returns a name in ASCII small letters. A name in another script is replaced by drawn syllables."""
    folded = unicodedata.normalize("NFKD", name.replace("ł", "l").replace("ø", "o").replace("ß", "ss"))
    plain = "".join(char for char in folded if char.isascii() and char.isalpha()).lower()
    return plain if len(plain) >= 3 else "".join(rng.choice(SYLLABLES) for _ in range(3))


def local_part(rng: Random, first: str, last: str) -> str:
    """Makes the part of an address before the @ from a name."""
    one, other = ascii_name(rng, first), ascii_name(rng, last)
    year = f"{rng.randint(50, 99)}"
    forms = (f"{one}.{other}", f"{one[0]}.{other}", f"{one}_{other}", f"{one}{year}", f"{other}{one[0]}{year}")
    return rng.choice(forms)


def _domain(rng: Random, language: str) -> str:
    if rng.random() < 0.25:
        return "".join(rng.choice(SYLLABLES) for _ in range(3)) + rng.choice((".com", ".org", ".net", ".io"))
    return rng.choice(PROVIDERS[language] + EVERYWHERE)


def email(rng: Random, language: str, first: str, last: str) -> str:
    """Makes an e-mail address from a name."""
    address = f"{local_part(rng, first, last)}@{_domain(rng, language)}"
    return address.capitalize() if rng.random() < 0.1 else address


def obfuscated_email(rng: Random, language: str, first: str, last: str) -> str:
    """Makes an e-mail address whose @ and points are spelled out."""
    at, dot = rng.choice(SPELLED[language])
    if at.isalpha() or at == "snabel-a":
        at, dot = f" {at} ", f" {dot} "
    domain = _domain(rng, language)
    dotted = domain.replace(".", dot)
    return f"{local_part(rng, first, last)}{at}{dotted if rng.random() < 0.8 else domain}"


def handle(rng: Random, first: str, last: str) -> str:
    """Makes a user name in social media, with an @."""
    one, other = ascii_name(rng, first), ascii_name(rng, last)
    made = "".join(rng.choice(SYLLABLES) for _ in range(3))
    number = rng.randint(3, 999)
    return "@" + rng.choice((f"{one}{number}", f"{one}.{made}", f"{made}_{other}", f"{one}_{other}", f"{made}{number}"))


MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "nl": "januari februari maart april mei juni juli augustus september oktober november december",
    "pl": "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia",
    "sv": "januari februari mars april maj juni juli augusti september oktober november december",
    "ru": "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
    "ar": "يناير فبراير مارس أبريل مايو يونيو يوليو أغسطس سبتمبر أكتوبر نوفمبر ديسمبر",
    "hi": "जनवरी फ़रवरी मार्च अप्रैल मई जून जुलाई अगस्त सितंबर अक्टूबर नवंबर दिसंबर",
}
EAST_ASIAN_DATES = {"zh": "{y}年{m}月{d}日", "ja": "{y}年{m}月{d}日", "ko": "{y}년 {m}월 {d}일"}


def birth_date(rng: Random, language: str) -> str:
    """Makes a date of birth as the language writes it, in numbers or with the month's name."""
    year, month, day = birth(rng)
    iso = f"{year}-{month:02d}-{day:02d}"
    if language in EAST_ASIAN_DATES:
        written = EAST_ASIAN_DATES[language].format(y=year, m=month, d=day)
        return rng.choice((written, written, iso, f"{year}/{month}/{day}", f"{year}.{month:02d}.{day:02d}"))
    name = MONTHS[language].split()[month - 1]
    written = {
        "en": rng.choice((f"{day} {name} {year}", f"{name} {day}, {year}")),
        "de": f"{day}. {name} {year}",
        "es": f"{day} de {name} de {year}",
        "pt": f"{day} de {name} de {year}",
    }.get(language, f"{day} {name} {year}")
    separator = {"de": ".", "pl": ".", "ru": ".", "nl": "-"}.get(language, "/")
    numbers = f"{day:02d}{separator}{month:02d}{separator}{year}"
    return rng.choice((numbers, numbers, written, written, iso, f"{day}{separator}{month}{separator}{year}"))
