"""Values after a label, in fifteen languages, and the same labels without a value. All values are made up."""

import pytest
from tests.privacy.detection import detect, detect_values

from eyas.privacy.case_insensitive import plain_text
from eyas.privacy.labeled_values import find_labels

FOUND = [
    ("CARD", "card 9934 7090 7807 3507 was refused", "en", "9934 7090 7807 3507"),  # no issuer has this prefix
    ("CARD", "my card is 9934709078073507", "en", "9934709078073507"),
    ("CARD", "9934709078073507 is my card", "en", "9934709078073507"),
    ("CARD", "Meine Kreditkarte 7035 7177 8090 3693 950 geht nicht", "de", "7035 7177 8090 3693 950"),
    ("CARD", "ma carte bancaire n° 4539 6779 7904 9697 est bloquée", "fr", "4539 6779 7904 9697"),  # a slip in it
    ("CARD", "номер карты 4539 6779 7904 9697", "ru", "4539 6779 7904 9697"),
    ("CARD", "我的银行卡号是6222021234567890128", "zh", "6222021234567890128"),
    ("CARD", "クレジットカード番号 4539 6779 7904 9696", "ja", "4539 6779 7904 9696"),
    ("CARD", "رقم بطاقتي ٤٥٣٩٦٧٧٩٧٩٠٤٩٦٩٦", "ar", "٤٥٣٩٦٧٧٩٧٩٠٤٩٦٩٦"),
    ("CARD", "카드번호는 4539-6779-7904-9696입니다", "ko", "4539-6779-7904-9696"),
    ("ACCOUNT", "il mio IBAN è IT50X6771756467670146266042", "it", "IT50X6771756467670146266042"),
    ("ACCOUNT", "계좌번호는 110-482-133071 신한은행", "ko", "110-482-133071"),
    ("ACCOUNT", "खाता संख्या 48213307192", "hi", "48213307192"),
    ("ACCOUNT", "口座番号 4821330", "ja", "4821330"),
    ("GOVERNMENT_ID", "driver's license D4821-93847-12093", "en", "D4821-93847-12093"),
    ("GOVERNMENT_ID", "Führerscheinnummer B072RRE2I55", "de", "B072RRE2I55"),
    ("GOVERNMENT_ID", "permis de conduire 12AB34567", "fr", "12AB34567"),
    ("GOVERNMENT_ID", "prawo jazdy 01234/21/1465", "pl", "01234/21/1465"),
    ("GOVERNMENT_ID", "паспорт 45 06 482133", "ru", "45 06 482133"),
    ("GOVERNMENT_ID", "身份证号110105198204120038", "zh", "110105198204120038"),
    ("GOVERNMENT_ID", "マイナンバーは4821 3307 1925です", "ja", "4821 3307 1925"),
    ("GOVERNMENT_ID", "주민등록번호 830412-1482133", "ko", "830412-1482133"),
    ("GOVERNMENT_ID", "رقم الهوية 1048213307", "ar", "1048213307"),
    ("GOVERNMENT_ID", "आधार नंबर ४८२१ ३३०७ १९२३", "hi", "४८२१ ३३०७ १९२३"),
    ("CUSTOMER_ID", "my customer number is 8834-2291", "en", "8834-2291"),
    ("CUSTOMER_ID", "member ID: W48213307", "en", "W48213307"),
    ("CUSTOMER_ID", "customer_id=48213307", "en", "48213307"),
    ("CUSTOMER_ID", "Versicherungsnummer KFZ 48-213307", "de", "KFZ 48-213307"),
    ("CUSTOMER_ID", "mon numéro client 883422", "fr", "883422"),
    ("CUSTOMER_ID", "número de socio 48213", "es", "48213"),
    ("CUSTOMER_ID", "numer klienta: 48213307", "pl", "48213307"),
    ("CUSTOMER_ID", "客户编号：8827163", "zh", "8827163"),
    ("DEVICE_ID", "IMEI: 35 693803 564380 9", "en", "35 693803 564380 9"),
    ("DEVICE_ID", "my router 3C-22-FB-9A-10-4E is offline", "en", "3C-22-FB-9A-10-4E"),
    ("VEHICLE", "VIN WBA3A5C58DF601234 BMW", "en", "WBA3A5C58DF601234"),
    ("VEHICLE", "my car's plate is 7KLM482", "en", "7KLM482"),
    ("VEHICLE", "mein Auto mit dem Kennzeichen HH-ZK 4821", "de", "HH-ZK 4821"),
    ("VEHICLE", "ma voiture immatriculée GK-482-RT a été volée", "fr", "GK-482-RT"),
    ("VEHICLE", "mi coche con matrícula 4821 KLM", "es", "4821 KLM"),
    ("VEHICLE", "mijn auto met kenteken KL-482-R", "nl", "KL-482-R"),
    ("VEHICLE", "машина А482ВС77", "ru", "А482ВС77"),
    ("VEHICLE", "车牌京A88K21", "zh", "京A88K21"),
    ("VEHICLE", "차량번호 12가 3456", "ko", "12가 3456"),
    ("VEHICLE", "गाड़ी नंबर DL 4C AB 4821", "hi", "DL 4C AB 4821"),
    ("COORDINATES", "GPS: 48.20849, 16.37208", "en", "48.20849, 16.37208"),
    ("COORDINATES", "I am at 52.51634, 13.37772, come", "en", "52.51634, 13.37772"),
    ("COORDINATES", "my home is at 52°30'59\"N 13°22'39\"E", "en", "52°30'59\"N 13°22'39\"E"),
    ("BIRTH_DATE", "DOB 04/12/1983, type 2 diabetes", "en", "04/12/1983"),
    ("BIRTH_DATE", "Patient, born on March 14, 1972, suffers from asthma", "en", "March 14, 1972"),
    ("BIRTH_DATE", "I was born on the 3rd of May 1981", "en", "3rd of May 1981"),
    ("BIRTH_DATE", "geb. 12.04.1983, Asthma", "de", "12.04.1983"),
    ("BIRTH_DATE", "née le 3 mai 1981, diabétique", "fr", "3 mai 1981"),
    ("BIRTH_DATE", "nacida el 3 de mayo de 1981, con asma", "es", "3 de mayo de 1981"),
    ("BIRTH_DATE", "urodzona 3 maja 1981, astma", "pl", "3 maja 1981"),
    ("BIRTH_DATE", "生年月日は1983年4月12日です", "ja", "1983年4月12日"),
    ("BIRTH_DATE", "जन्म तिथि १२/०४/१९८३", "hi", "१२/०४/१९८३"),
    ("SECRET", "The PIN of my debit card is 4821", "en", "4821"),
    ("SECRET", "die pin für mein handy lautet 9021", "de", "9021"),
    ("SECRET", "le digicode est 48B21", "fr", "48B21"),
    ("SECRET", "暗証番号は4821です", "ja", "4821"),
    ("SECRET", "पिन ४८२१ है", "hi", "४८२१"),
    ("SECRET", "my wifi password for my flat: Blumentopf7", "en", "Blumentopf7"),
    ("SECRET", "my pass is Zorvek77", "en", "Zorvek77"),
    ("SECRET", "my password is sunshine.", "en", "sunshine"),
    ("SECRET", "Mein Passwort ist Hundewiese.", "de", "Hundewiese"),
    ("SECRET", "パスワードはkotek123です", "ja", "kotek123"),
    ("SECRET", "пароль от вайфая kotek123", "ru", "kotek123"),
    ("SECRET", "Cookie: sessionid=8f3kd92mdkq02mfk39dk", "en", "8f3kd92mdkq02mfk39dk"),
    ("SECRET", "8f3d9a7b6c5e4d3f2a1b0c9d8e7f6a5b is my api key", "en", "8f3d9a7b6c5e4d3f2a1b0c9d8e7f6a5b"),
    ("HANDLE", "my insta is @zorvek34", "en", "@zorvek34"),
    ("HANDLE", "IG: zorvek_34", "en", "zorvek_34"),
    ("HANDLE", "mi instagram es @zorvek34", "es", "@zorvek34"),
    ("HANDLE", "微信号：zorvek_34", "zh", "zorvek_34"),
    ("HANDLE", "My friend Tina Wallner (@tinawall7) said so", "en", "@tinawall7"),
    ("PHONE", "我的手机号是13812345678", "zh", "13812345678"),
    ("PHONE", "電話は090-8834-2291です", "ja", "090-8834-2291"),
    ("PHONE", "제 전화번호는 010-8834-2291입니다", "ko", "010-8834-2291"),
    ("PHONE", "رقم هاتفي ٠٥٥١٢٣٤٥٦٧", "ar", "٠٥٥١٢٣٤٥٦٧"),
    ("PHONE", "мой телефон 8 (903) 482-13-30", "ru", "8 (903) 482-13-30"),
    ("PHONE", "मेरा फोन नंबर 98834 82133 है", "hi", "98834 82133"),
    ("ADDRESS", "住址：北京市朝阳区建国路88号3单元502室", "zh", "北京市朝阳区建国路88号3单元502室"),
    ("ADDRESS", "東京都渋谷区神南1-19-11に住んでいます", "ja", "東京都渋谷区神南1-19-11"),
    ("ADDRESS", "서울특별시 강남구 테헤란로 152, 3층", "ko", "서울특별시 강남구 테헤란로 152, 3층"),
    ("ADDRESS", "живу по адресу ул. Ленина, д. 12, кв. 5", "ru", "ул. Ленина, д. 12, кв. 5"),
]


@pytest.mark.parametrize(("kind", "text", "language", "value"), FOUND)
def test_found(kind, text, language, value):
    assert any(value in found for found in detect_values(kind, text, language)), detect(text, language)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The PIN must have 4 digits and the card a chip.", "en"),
        ("order id 48213307 was late, tracking number 1Z999AA10123456784", "en"),
        ("Each guest brought a plate of 15 cookies.", "en"),
        ("The account of 120000 dollars grew by 4 % in 2023.", "en"),
        ("The password is incorrect.", "en"),
        ("Passwort: vergessen", "de"),
        ("Das Passwort ist falsch.", "de"),
        ("In Python, @dataclass and @pytest.fixture are decorators.", "en"),
        ("@Override\npublic void run() {}", "en"),
        ("My friend works at @NASA and @Google.", "en"),
        ("points = [[52.51634, 13.37772], [48.20849, 16.37208]]", "en"),
        ("lat = 52.51634\nlng = 13.37772", "en"),
        ("クッキーを5枚食べます。キーワードは3つです。", "ja"),
        ("Las palabras clave son 12.", "es"),
        ("nie mam 123456 zł i sin 482133 azúcar", "pl"),
        ("The river at one point in time is 4000 wide", "en"),
        ("Sort these: word0 word1 word2 word3 word4 word5 word6 word7", "en"),
        ("um 15 Uhr auf Seite 48213", "de"),
        ("Open di-vr 11.00-17.00, za 10.00-18.00", "nl"),
        ("The lottery drew 4 8 15 16 23 42", "en"),
        ("Mask 255.255.255.0", "en"),
        ("Add 2 Tbsp of it and see Section 2 of August 2015", "en"),
        ("It weighs 8-ounce-servings on Orbius-5, 15.3 in all", "en"),
        ("国道39号を走る", "ja"),
        ("第3章 第48213页", "zh"),
    ],
)
def test_clean(text, language):
    assert detect(text, language) == []


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Marie Curie was born on 7 November 1867 in Warsaw.", "en"),
        ("The painter was born on 3 May 1927 and became a member of the academy.", "en"),
        ("Der Maler, geboren am 3. Mai 1927, wurde Mitglied der Akademie.", "de"),
        ("Le peintre, né le 3 mai 1927, devint membre de l'académie.", "fr"),
    ],
)
def test_dates_of_birth_of_public_people_stay(text, language):
    assert detect_values("BIRTH_DATE", text, language) == []


@pytest.mark.parametrize(
    ("text", "language", "dates"),
    [
        ("Ski camp: Zorvek Tallis, 26.01.1996, rented skis 150 cm", "en", ["26.01.1996"]),
        ("Patient Tevita Fifita 6 March 1962, knee", "en", ["6 March 1962"]),
        ("My grandma (12.11.1865) painted", "en", []),
    ],
)
def test_a_date_behind_a_name_is_a_date_of_birth(text, language, dates):
    assert detect_values("BIRTH_DATE", text, language) == dates


def test_the_nearest_label_decides():
    assert detect_values("ACCOUNT", "the account holder's phone: 212-867-5309") == []
    assert detect_values("SECRET", "card 4539677979049696, cvv 482") == ["482"]


@pytest.mark.parametrize(
    "value",
    [
        "anna (at) web (dot) de",
        "anna.schmidt at web dot de",
        "anna[@]web.de",
        "anna AT web DOT de",
        "anna@web . de",
        "anna @ web.de",
        "anna_k [at] gmail [dot] com",
        "anna Klammeraffe web Punkt de",
        "anna arroba correo punto es",
        "anna chiocciola libero punto it",
        "anna małpa wp kropka pl",
        "anna apenstaartje ziggo punt nl",
        "anna snabel-a telia punkt se",
        "anna arobase orange point fr",
    ],
)
def test_addresses_of_mail_that_are_spelt_out(value):
    assert detect_values("EMAIL", f"{value}") == [value]
    assert value in detect_values("EMAIL", f"bitte an {value}, danke")


def test_labels_in_every_spelling():
    kinds = [[label.kind for label in find_labels(text)] for text in ("card number", "card_number", "cardNumber")]
    assert kinds == [["CARD"]] * 3
    assert [label.kind for label in find_labels("Kreditkartennummer")] == ["CARD"]
    assert [label.kind for label in find_labels("iPhone 15")] == ["OTHER"]
    assert find_labels("nie, sin") == ()


def test_plain_text_has_the_same_length():
    text = "٠١٢ ۳ ४ １２：＠ “a” – 5\u00a0€ 한 İ"
    assert plain_text(text) == '012 3 4 12:@ "a" - 5 € 한 İ'
