"""Who is greeted, who signs, who stands in the headers of a letter. All names are made up and on no list."""

import pytest
from tests.privacy.detection import detect, detect_values


@pytest.mark.parametrize(
    ("text", "language", "names"),
    [
        ("Dear Zorvek,\nthe report is late.", "en", ["Zorvek"]),
        ("hi zorvek,\nthe report is late", "en", ["zorvek"]),
        ("Hi Zorvek -\nthe report is late", "en", ["Zorvek"]),
        ("> Hello Zorvek,\n> the report is late.", "en", ["Zorvek"]),
        ("Dear Mr Young,\nthe report is late.", "en", ["Young"]),
        ("Liebe Quendla,\nder Bericht fehlt.", "de", ["Quendla"]),
        ("Sehr geehrter Herr Garenstead,\nder Bericht fehlt.", "de", ["Garenstead"]),
        ("Cher Monsieur Garenstead,\nle rapport manque.", "fr", ["Garenstead"]),
        ("Bonjour Quelvanne,\nle rapport manque.", "fr", ["Quelvanne"]),
        ("Hola Brelindo,\nfalta el informe.", "es", ["Brelindo"]),
        ("Estimado señor Garenstead:\nfalta el informe.", "es", ["Garenstead"]),
        ("Caro Torvello,\nmanca il rapporto.", "it", ["Torvello"]),
        ("Prezado Jurandevo,\nfalta o relatório.", "pt", ["Jurandevo"]),
        ("Beste Wiebrandus,\nhet rapport ontbreekt.", "nl", ["Wiebrandus"]),
        ("Geachte heer Garenstead,\nhet rapport ontbreekt.", "nl", ["Garenstead"]),
        ("Drogi Zdzimirku,\nbrakuje raportu.", "pl", ["Zdzimirku"]),
        ("Szanowny Panie Garenstead,\nbrakuje raportu.", "pl", ["Garenstead"]),
        ("Hej Bröndulf!\nRapporten saknas.", "sv", ["Bröndulf"]),
    ],
)
def test_who_is_greeted(text, language, names):
    assert detect_values("PERSON", text, language) == names


@pytest.mark.parametrize(
    ("closing", "language"),
    [
        ("Yours sincerely,\nZorvek Garenstead", "en"),
        ("Best,\nZ. Garenstead", "en"),
        ("Cheers\n\nZorvek", "en"),
        ("Thanks\n--\nZorvek Garenstead", "en"),
        ("Love,\nHope", "en"),
        ("Mit freundlichen Grüßen\nZorvek Garenstead", "de"),
        ("LG\nQuendla", "de"),
        ("Cordialement,\nQuelvanne Garenstead", "fr"),
        ("Je t'embrasse,\nQuelvanne", "fr"),
        ("Un saludo,\nBrelindo", "es"),
        ("Con cariño,\nBrelindo", "es"),
        ("Cordiali saluti,\nTorvella Garenstead", "it"),
        ("Com carinho,\nJurandeva", "pt"),
        ("Met vriendelijke groet,\nWiebrandus Garenstead", "nl"),
        ("Z pozdrowieniami,\nZdzimirka", "pl"),
        ("Vänliga hälsningar\nBröndulf", "sv"),
    ],
)
def test_who_signs(closing, language):
    name = closing.rpartition("\n")[2]
    assert detect_values("PERSON", f"1 + 1 = 2.\n\n{closing}", language) == [name]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Hi Wiebra and Zorvek,\nthe report is late.", ["Wiebra", "Zorvek"]),
        ("Dear Zorvek, dear Quendla,\nthe report is late.", ["Zorvek", "Quendla"]),
        ("Dear Zorvek Garenstead and family,\nit rains.", ["Zorvek Garenstead"]),
        ("It rains.\n\nBest,\nZorvek & Quendla", ["Zorvek", "Quendla"]),
        ("It rains. Thanks, Zorvek", ["Zorvek"]),
        ("It rains.\n\nThanks,\nZorvek Garenstead, PhD", ["Zorvek Garenstead"]),
        ("It rains.\n\nBest,\nZorvek\nSales Manager", ["Zorvek"]),
    ],
)
def test_two_names_and_what_stands_behind_a_name(text, names):
    assert detect_values("PERSON", text) == names


@pytest.mark.parametrize(
    ("keys", "language"),
    [
        ("From: {}\nTo: {}\nSubject: 1", "en"),
        ("To: {}, {}\nSubject: 1", "en"),
        ("Cc: {}; {}", "en"),
        ("> From: {}\n> To: {}", "en"),
        ("Von: {}\nAn: {}\nBetreff: 1", "de"),
        ("De : {}\nÀ : {}\nObjet : 1", "fr"),
        ("De: {}\nPara: {}\nAsunto: 1", "es"),
        ("Da: {}\nA: {}\nOggetto: 1", "it"),
        ("De: {}\nPara: {}\nAssunto: 1", "pt"),
        ("Van: {}\nAan: {}\nOnderwerp: 1", "nl"),
        ("Od: {}\nDo: {}\nTemat: 1", "pl"),
        ("Från: {}\nTill: {}\nÄmne: 1", "sv"),
    ],
)
def test_who_stands_in_the_headers(keys, language):
    assert detect_values("PERSON", keys.format("Zorvek Garenstead", "Quendla Okwuosa"), language) == [
        "Zorvek Garenstead",
        "Quendla Okwuosa",
    ]


def test_a_last_name_that_is_a_word_before_a_mail_address():
    assert detect_values("PERSON", "To: Young <y@zorvek.io>\nSubject: 1") == ["Young"]
    assert detect_values("PERSON", "From: Garenstead, Zorvek\nSent: Monday") == ["Garenstead, Zorvek"]


@pytest.mark.parametrize(
    ("line", "language"),
    [
        ("On Mon, 3 Jun 2024 at 10:12, Zorvek Garenstead wrote:", "en"),
        ("On 3 June 2024, Zorvek Garenstead <zg@zorvek.io> wrote:", "en"),
        ("Am 03.06.2024 um 10:12 schrieb Zorvek Garenstead:", "de"),
        ("Le 3 juin 2024 à 10:12, Zorvek Garenstead a écrit :", "fr"),
        ("El 3 jun 2024, a las 10:12, Zorvek Garenstead escribió:", "es"),
        ("Il giorno 3 giu 2024 alle ore 10:12 Zorvek Garenstead ha scritto:", "it"),
        ("Em 3 de jun. de 2024 às 10:12, Zorvek Garenstead escreveu:", "pt"),
        ("Op 3 jun 2024 om 10:12 schreef Zorvek Garenstead:", "nl"),
        ("W dniu 3.06.2024 o 10:12 Zorvek Garenstead napisał:", "pl"),
        ("Den 3 juni 2024 kl. 10:12 skrev Zorvek Garenstead:", "sv"),
    ],
)
def test_who_wrote_what_is_answered(line, language):
    assert detect_values("PERSON", f"{line}\n> 1 + 1", language) == ["Zorvek Garenstead"]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Dear all,\nthe report is late.", "en"),
        ("Hi team,\nthe report is late.", "en"),
        ("Hello everyone,\nthe report is late.", "en"),
        ("Dear Hiring Manager,\nI apply.", "en"),
        ("Dear Customer Support,\nit broke.", "en"),
        ("Dear Mr. President,\nit rains.", "en"),
        ("Hi there, quick question\nabout maths", "en"),
        ("hey can you help me\nwith maths", "en"),
        ("Hello world!\nHow are you?", "en"),
        ("Liebe Kolleginnen und Kollegen,\nder Bericht fehlt.", "de"),
        ("Hallo Leute,\nwie geht das?", "de"),
        ("Liebes Tagebuch,\nes regnet.", "de"),
        ("Guten Tag,\nich habe eine Frage", "de"),
        ("Bonjour à tous,\nle rapport manque.", "fr"),
        ("Chers collègues,\nle rapport manque.", "fr"),
        ("Hola a todos,\nfalta el informe.", "es"),
        ("Estimados clientes:\nfalta el informe.", "es"),
        ("Ciao a tutti,\nmanca il rapporto.", "it"),
        ("Gentili clienti,\nmanca il rapporto.", "it"),
        ("Prezados senhores,\nfalta o relatório.", "pt"),
        ("Beste klant,\nhet rapport ontbreekt.", "nl"),
        ("Szanowni Państwo,\nbrakuje raportu.", "pl"),
        ("Cześć wszystkim,\nbrakuje raportu.", "pl"),
        ("Hej alla,\nrapporten saknas.", "sv"),
    ],
)
def test_a_greeting_of_nobody_stays(text, language):
    assert detect(text, language) == []


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Thanks for the help.\nIt works.", "en"),
        ("Thanks\nIt works now", "en"),
        ("Thanks. Next question\nwhat is gravity?", "en"),
        ("Thank you\nFor your service", "en"),
        ("Best Python Frameworks\n1. Django", "en"),
        ("Best\nPractice", "en"),
        ("Love, peace, and happiness\nfor all", "en"),
        ("Kind regards,\nThe Support Team", "en"),
        ("Thanks,\nManagement", "en"),
        ("Best,\n[Your Name]", "en"),
        ("Danke\nDas hilft", "de"),
        ("Danke\nNoch eine Frage", "de"),
        ("Merci\nAutre question", "fr"),
        ("Gracias\nOtra pregunta", "es"),
        ("Grazie\nAltra domanda", "it"),
        ("Obrigado\nOutra pergunta", "pt"),
        ("Bedankt\nVolgende vraag", "nl"),
        ("Dziękuję\nNastępne pytanie", "pl"),
        ("Tack\nNästa fråga", "sv"),
    ],
)
def test_thanks_and_what_goes_on_stay(text, language):
    assert detect(text, language) == []


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("From: Support\nTo: All Staff\nSubject: Closed", "en"),
        ("To: Do List\n1. milk", "en"),
        ("From: English\nTo: German", "en"),
        ("De: Inglés\nA: Español", "es"),
        ("Then he wrote: never again", "en"),
        ("The New York Times wrote: it rains", "en"),
    ],
)
def test_headers_without_people_stay(text, language):
    assert detect(text, language) == []
