import json
import socket
import subprocess
import sys
import time

import pytest

from eyas.data.select.language import LABELS, detect_language, detect_languages

SHORT = {
    "en": [
        "What is the capital of Peru?",
        "Write a poem about rain.",
        "How do I sort a list?",
        "Tell me a joke please",
        "Fix this sentence for me",
        "Who won the match yesterday?",
        "Explain black holes simply",
        "Give me three ideas for dinner",
    ],
    "de": [
        "Wie spät ist es in Tokio?",
        "Schreib mir ein Gedicht.",
        "Was bedeutet dieses Wort?",
        "Erkläre mir das bitte",
        "Wie koche ich Reis?",
        "Nenne drei Gründe dafür",
        "Warum ist der Himmel blau?",
        "Fasse den Text kurz zusammen",
    ],
    "fr": [
        "Quelle heure est-il à Tokyo ?",
        "Écris un poème sur la pluie.",
        "Comment trier une liste ?",
        "Raconte-moi une blague",
        "Pourquoi le ciel est-il bleu ?",
        "Donne trois idées de repas",
        "Résume ce texte en une phrase",
        "Corrige cette phrase",
    ],
    "es": [
        "¿Cuál es la capital de Perú?",
        "Escribe un poema sobre la lluvia.",
        "¿Cómo ordeno una lista?",
        "Cuéntame un chiste",
        "¿Por qué el cielo es azul?",
        "Dame tres ideas para la cena",
        "Resume este texto en una frase",
        "Corrige esta frase por favor",
    ],
    "it": [
        "Qual è la capitale del Perù?",
        "Scrivi una poesia sulla pioggia.",
        "Come ordino una lista?",
        "Raccontami una barzelletta",
        "Perché il cielo è blu?",
        "Dammi tre idee per la cena",
        "Riassumi questo testo in una frase",
        "Correggi questa frase per favore",
    ],
    "pt": [
        "Qual é a capital do Peru?",
        "Escreva um poema sobre a chuva.",
        "Como ordeno uma lista?",
        "Conte uma piada para mim",
        "Por que o céu é azul?",
        "Dê três ideias para o jantar",
        "Resuma este texto em uma frase",
        "Corrija esta frase por favor",
    ],
    "nl": [
        "Hoe laat is het in Tokio?",
        "Schrijf een gedicht over regen.",
        "Hoe sorteer ik een lijst?",
        "Vertel me een grap",
        "Waarom is de lucht blauw?",
        "Geef drie ideeën voor het avondeten",
        "Vat deze tekst kort samen",
        "Verbeter deze zin alsjeblieft",
    ],
    "pl": [
        "Która jest godzina w Tokio?",
        "Napisz wiersz o deszczu.",
        "Jak posortować listę?",
        "Opowiedz mi dowcip",
        "Dlaczego niebo jest niebieskie?",
        "Podaj trzy pomysły na kolację",
        "Streść ten tekst w jednym zdaniu",
        "Popraw to zdanie, proszę",
    ],
    "sv": [
        "Vad är klockan i Tokyo?",
        "Skriv en dikt om regn.",
        "Hur sorterar jag en lista?",
        "Berätta ett skämt för mig",
        "Varför är himlen blå?",
        "Ge tre förslag på middag",
        "Sammanfatta texten i en mening",
        "Rätta den här meningen",
    ],
    "ru": [
        "Который час в Токио?",
        "Напиши стихи о дожде.",
        "Как отсортировать список?",
        "Расскажи мне шутку",
        "Почему небо голубое?",
        "Дай три идеи для ужина",
        "Кратко перескажи этот текст",
        "Исправь это предложение",
    ],
    "ja": [
        "東京は今何時ですか？",
        "雨についての詩を書いて。",
        "リストを並べ替えるには？",
        "冗談を言ってください",
        "なぜ空は青いのですか",
        "夕食の案を三つください",
        "この文章を要約して",
        "この文を直してください",
    ],
    "zh": [
        "东京现在几点了？",
        "写一首关于雨的诗。",
        "怎样给列表排序？",
        "给我讲个笑话",
        "天空为什么是蓝色的？",
        "请给三个晚餐建议",
        "用一句话总结这段文字",
        "请改正这个句子",
    ],
    "ko": [
        "도쿄는 지금 몇 시야?",
        "비에 대한 시를 써 줘.",
        "목록을 어떻게 정렬하지?",
        "농담 하나 해 줘",
        "하늘은 왜 파란색이야?",
        "저녁 메뉴 세 가지 추천해 줘",
        "이 글을 한 문장으로 요약해",
        "이 문장을 고쳐 줘",
    ],
    "ar": [
        "كم الساعة الآن في طوكيو؟",
        "اكتب قصيدة عن المطر.",
        "كيف أرتب قائمة؟",
        "احك لي نكتة",
        "لماذا السماء زرقاء؟",
        "أعطني ثلاث أفكار للعشاء",
        "لخص هذا النص في جملة واحدة",
        "صحح هذه الجملة من فضلك",
    ],
}
LONG = {
    "en": [
        (
            "I run a small bakery and want to write a friendly letter to the neighbours, because the new "
            "oven will be delivered at night. Please keep it short."
        ),
        (
            "My laptop gets very hot when I watch films. List the most likely reasons, and tell me what I "
            "can check myself before I bring it to a shop."
        ),
    ],
    "de": [
        (
            "Ich betreibe eine kleine Bäckerei und möchte den Nachbarn einen freundlichen Brief schreiben, "
            "weil der neue Ofen in der Nacht geliefert wird. Bitte fasse dich kurz."
        ),
        (
            "Mein Rechner wird sehr heiß, wenn ich Filme schaue. Nenne die wahrscheinlichsten Gründe und "
            "was ich selbst prüfen kann, bevor ich ihn in die Werkstatt bringe."
        ),
    ],
    "fr": [
        (
            "Je tiens une petite boulangerie et je voudrais écrire une lettre aimable aux voisins, car le "
            "nouveau four sera livré pendant la nuit. Fais court, s'il te plaît."
        ),
        (
            "Mon ordinateur chauffe beaucoup quand je regarde des films. Donne les causes les plus probables "
            "et ce que je peux vérifier moi-même avant d'aller au magasin."
        ),
    ],
    "es": [
        (
            "Tengo una pequeña panadería y quiero escribir una carta amable a los vecinos, porque el horno "
            "nuevo llegará por la noche. Que sea breve, por favor."
        ),
        (
            "Mi portátil se calienta mucho cuando veo películas. Enumera las causas más probables y dime "
            "qué puedo revisar yo mismo antes de llevarlo a la tienda."
        ),
    ],
    "it": [
        (
            "Ho una piccola panetteria e vorrei scrivere una lettera gentile ai vicini, perché il nuovo "
            "forno sarà consegnato di notte. Tienila breve, per favore."
        ),
        (
            "Il mio computer si scalda molto quando guardo i film. Elenca le cause più probabili e dimmi "
            "che cosa posso controllare da solo prima di portarlo in negozio."
        ),
    ],
    "pt": [
        (
            "Tenho uma pequena padaria e quero escrever uma carta simpática aos vizinhos, porque o forno "
            "novo vai ser entregue durante a noite. Seja breve, por favor."
        ),
        (
            "O meu computador aquece muito quando vejo filmes. Indique as causas mais prováveis e diga o "
            "que posso verificar sozinho antes de o levar à loja."
        ),
    ],
    "nl": [
        (
            "Ik heb een kleine bakkerij en wil de buren een vriendelijke brief schrijven, omdat de nieuwe "
            "oven 's nachts wordt geleverd. Houd het kort, alsjeblieft."
        ),
        (
            "Mijn laptop wordt erg heet als ik films kijk. Noem de meest waarschijnlijke oorzaken en vertel "
            "me wat ik zelf kan nakijken voordat ik hem naar de winkel breng."
        ),
    ],
    "pl": [
        (
            "Prowadzę małą piekarnię i chcę napisać uprzejmy list do sąsiadów, ponieważ nowy piec zostanie "
            "dostarczony w nocy. Proszę o krótki tekst."
        ),
        (
            "Mój komputer bardzo się nagrzewa, kiedy oglądam filmy. Wymień najbardziej prawdopodobne "
            "przyczyny i powiedz, co mogę sprawdzić sam, zanim zaniosę go do sklepu."
        ),
    ],
    "sv": [
        (
            "Jag driver ett litet bageri och vill skriva ett vänligt brev till grannarna, eftersom den nya "
            "ugnen levereras på natten. Håll det kort, tack."
        ),
        (
            "Min dator blir mycket varm när jag tittar på film. Räkna upp de troligaste orsakerna och "
            "berätta vad jag själv kan kontrollera innan jag lämnar in den."
        ),
    ],
    "ru": [
        (
            "У меня маленькая пекарня, и я хочу написать соседям "
            "вежливое письмо, потому что новую печь привезут "
            "ночью. Пожалуйста, коротко."
        ),
        (
            "Мой ноутбук сильно греется, когда я смотрю фильмы. "
            "Перечисли самые вероятные причины и скажи, что я "
            "могу проверить сам, прежде чем нести его в "
            "мастерскую."
        ),
    ],
    "ja": [
        (
            "小さなパン屋を営んでいます。新しいオーブンが夜に届くので、ご近所に丁寧な手紙を書きたいです。短く"
            "まとめてください。"
        ),
        (
            "映画を見るとパソコンがとても熱くなります。考えられる原因と、店に持っていく前に自分で確かめられる"
            "ことを教えてください。"
        ),
    ],
    "zh": [
        "我开了一家小面包店，因为新烤箱要在夜里送到，所以想给邻居写一封客气的信。请写得短一点。",
        "我看电影的时候笔记本电脑会变得很热。请列出最可能的原因，并告诉我在送去维修之前自己可以检查什么。",
    ],
    "ko": [
        (
            "저는 작은 빵집을 운영하는데 새 오븐이 밤에 배달될 예정이라 이웃들에게 정중한 편지를 쓰고 "
            "싶습니다. 짧게 써 주세요."
        ),
        (
            "영화를 볼 때 노트북이 아주 뜨거워집니다. 가장 그럴듯한 원인을 나열하고, 가게에 가져가기 전에 "
            "제가 직접 확인할 수 있는 것을 알려 주세요."
        ),
    ],
    "ar": [
        ("لدي مخبز صغير وأريد أن أكتب رسالة لطيفة إلى الجيران لأن الفرن الجديد سيصل في الليل. اجعلها قصيرة من فضلك."),
        (
            "حاسوبي يسخن كثيرا عندما أشاهد الأفلام. اذكر الأسباب الأكثر احتمالا وما الذي يمكنني فحصه بنفسي "
            "قبل أن آخذه إلى المتجر."
        ),
    ],
}
NO_LANGUAGE = [
    "",
    "?",
    "2+2",
    "x^2+3x=0",
    "\\int_0^1 x^2 dx = \\frac{1}{3}",
    "def f(x): return x",
    "for i in range(10):\n    x[i] += 1",
    "SELECT id, nome FROM clienti;",
    "ls -la /tmp | grep foo",
    '<div class="a">b</div>',
    "import numpy as np\nx = np.zeros((3,3))",
    "const f = (a, b) => a.map(x => x * b);",
    'fn main() { println!("{}", 1); }',
    "git commit -m fix",
    '{"a": [1, 2, 3], "b": null}',
    "pizza",
    "tokyo",
    "Summarize:",
    "https://example.com/de/artikel/der-hund-und-die-katze",
]


@pytest.mark.parametrize("language", SHORT)
def test_sentences_of_fourteen_languages(language):
    wrong = [text for text in SHORT[language] if detect_language(text) != language]
    assert len(wrong) <= 2, wrong  # Russian is told from Bulgarian by whole sentences
    assert [text for text in LONG[language] if detect_language(text) != language] == []


def test_short_sentences_as_a_whole():
    pairs = [(language, detect_language(text)) for language, texts in SHORT.items() for text in texts]
    assert sum(want == found for want, found in pairs) >= 0.97 * len(pairs)


@pytest.mark.parametrize("text", NO_LANGUAGE)
def test_what_has_no_language_is_taken_for_english(text):
    assert detect_language(text) == "en"


def test_code_in_fences_and_addresses_do_not_count():
    code = "```python\nfor line in file:\n    print(line, end='')\nreturn the_result_of(this, and_that)\n```\n"
    assert detect_language(f"Was macht dieses Programm?\n{code * 5}") == "de"
    assert (
        detect_language("https://example.com/what-is-the-weather-like-today-in-town Worum geht es hier genau?") == "de"
    )


def test_only_the_first_characters_are_read():
    german = LONG["de"][0] * 20
    assert detect_language(german + LONG["ja"][0] * 50) == "de"
    start = time.process_time()
    assert detect_language(german * 2000) == "de"  # 5 MB
    assert time.process_time() - start < 0.2


def test_all_languages_of_a_record():
    assert detect_languages(["How do I sort a list?"]) == ("en",)
    assert set(detect_languages(["Please translate this sentence into English: " + SHORT["ja"][0]])) == {"en", "ja"}
    assert detect_languages([LONG["de"][0], "And now please the same in English"]) == ("de", "en")
    assert set(detect_languages([LONG["ru"][0] + " " + LONG["de"][1]])) == {"ru", "de"}
    assert detect_languages(["Which is larger, α or β? Say it to Zoë, “please”."]) == ("en",)


def test_the_same_in_another_process():
    texts = [text for texts in SHORT.values() for text in texts] + NO_LANGUAGE
    program = (
        "import json, sys; from eyas.data.select.language import detect_language; "
        "print(*map(detect_language, json.load(sys.stdin)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [detect_language(text) for text in texts]


def test_no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    assert detect_language(LONG["fr"][0]) == "fr"
    assert len(set(LABELS)) == len(LABELS)
