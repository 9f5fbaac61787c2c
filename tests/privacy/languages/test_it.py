"""Italian: names of private persons are found by their context, names of public knowledge stay."""

import pytest
from tests.privacy.detection import find_private_names

PAIRS = [
    ("Ginevra Tolomelli", "La mia padrona di casa, {}, non mi restituisce la caparra.", "Chi era {}, la pittrice?"),
    (
        "Alessandro Manzoni",
        "Scrivi un sollecito a {}: non ha ancora pagato la mia fattura.",
        "Riassumi il romanzo più famoso di {}.",
    ),
    (
        "Elia Brambati",
        "Il fisioterapista ha visto {} ieri: riabilitazione del ginocchio per due mesi.",
        "Quale film ha diretto {} nel 1987?",
    ),
    ("Giuseppe Garibaldi", "La busta paga di {} ha un errore negli straordinari.", "In quali battaglie combatté {}?"),
    (
        "Xhesika Dervishi",
        "Mio figlio ha litigato con {} a scuola, scrivo alla maestra?",
        "Inventa una storia con {}, una strega che ha paura del buio.",
    ),
    (
        "Luigi Pirandello",
        "{} mi ha bloccata su Instagram dopo che ci siamo lasciati.",
        "Analizza lo stile di {} nelle novelle.",
    ),
    (
        "Ludovica Passerini",
        "Cerco un regalo per la mia collega {}, che va in pensione.",
        "{} ha 15 figurine e ne regala 6. Quante figurine le restano in totale?",
    ),
    ("Maria Callas", "Ho ricevuto il curriculum di {} per il posto di commessa.", "Quali opere ha cantato {}?"),
    (
        "Amedeo Scognamillo",
        "Salve, mi chiamo {} e il mio pacco non è arrivato.",
        "Confronta la filosofia di {} con quella di Kant.",
    ),
    (
        "Roberto Baggio",
        "{} oggi resta assente da scuola, ha la febbre: scrivi la giustificazione.",
        "Quanti gol ha segnato {} ai Mondiali?",
    ),
    (
        "Oreste Vinciguerra",
        "Paziente {}, 71 anni, diabetico: scrivi la lettera di dimissione.",
        "Spiega la teoria di {} sulla luce.",
    ),
    (
        "Grazia Deledda",
        "Bonifico da fare: {} ci ha prestato i soldi per l'affitto.",
        "Perché {} vinse il premio Nobel?",
    ),
    (
        "Noemi Castracane",
        "La nonna vuole lasciare la casa a {}, che cosa dice il notaio del testamento?",
        "Elenca gli album di {}, la cantante.",
    ),
    (
        "Sandro Pertini",
        "Convoca {} per una contestazione disciplinare, arriva sempre in ritardo al turno.",
        "Che ruolo ebbe {} nella Resistenza?",
    ),
    ("Ivo Bellandi", "Il mio ragazzo mi tradisce con {}, ho letto i messaggi.", "Dove si trovano gli affreschi di {}?"),
]
PHRASES = [
    ("Buongiorno, mi chiamo Fiammetta Corradin e cerco un appartamento.", "Fiammetta Corradin"),
    ("ciao sono tevita, non riesco ad accedere al mio conto", "tevita"),
    ("Cara Fiammetta,\ngrazie per il regalo di mia figlia.\nUn abbraccio,\nMarta", "Fiammetta"),
    ("Correggi la mia lettera di dimissioni.\nCordiali saluti,\nFiammetta Corradin", "Fiammetta Corradin"),
    ("Paziente: Fiammetta Corradin\nMotivo della visita: mal di schiena da un mese", "Fiammetta Corradin"),
    ("Nome dell'inquilina: Fiammetta Corradin. Mancano due mesi di affitto.", "Fiammetta Corradin"),
]
ORDINARY = [
    "Chi ha dipinto la Gioconda e perché Leonardo da Vinci la portò in Francia?",
    "Spiega il teorema di Pitagora a una bambina di nove anni.",
    "Confronta la poesia di Ungaretti con quella di Montale.",
    "Scrivi un dialogo tra Socrate e un barista.",
    "Quali sono i migliori film di Federico Fellini?",
    "Giulia compra 4 quaderni da 3 euro. Quanto paga in tutto?",
    "Fai l'analisi logica della frase: «Marco mangia una mela».",
    "Scrivi una cronologia della vita di Giuseppe Garibaldi.",
    "Perché Renzo e Lucia non possono sposarsi nel romanzo di Manzoni?",
    "Scrivi una funzione Python che ordina la lista ['Anna', 'Luca', 'Marta'].",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "it")
    assert not find_private_names(public.format(name), "it")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "it")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "it")
