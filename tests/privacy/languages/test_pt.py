"""Portuguese: names of private persons are found by their context, names of public knowledge stay."""

import pytest
from tests.privacy.detection import find_private_names

PAIRS = [
    ("Graça Valadim", "A minha senhoria, {}, não me devolve a caução do apartamento.", "Quem foi {}, a pintora?"),
    (
        "Machado de Assis",
        "Escreva um aviso prévio de demissão para {}, do turno da noite.",
        "Resuma o romance mais famoso de {}.",
    ),
    (
        "Túlio Bragantini",
        "A fisioterapeuta atendeu {} ontem: entorse no tornozelo, dez sessões.",
        "Que filme {} realizou em 1994?",
    ),
    (
        "Vasco da Gama",
        "{} me deve três meses de aluguel e não responde às minhas mensagens.",
        "Em que ano {} chegou à Índia?",
    ),
    (
        "Jandira Kopenawa",
        "Meu filho brigou com {} na escola, escrevo para a professora?",
        "Inventa uma história com {}, uma bruxa que tem medo do escuro.",
    ),
    (
        "Clarice Lispector",
        "Procuro um presente para a minha colega {}, que vai se aposentar.",
        "Compare os contos de {} com os de Machado de Assis.",
    ),
    (
        "Délio Quaresma",
        "Recebi o currículo de {} para a vaga de cozinheiro.",
        "{} tem 15 berlindes e dá 6. Quantos berlindes tem no total?",
    ),
    (
        "Tarsila do Amaral",
        "{} me bloqueou no Instagram depois que a gente terminou o namoro.",
        "Descreva os quadros de {}.",
    ),
    (
        "Zuleica Montenegro",
        "Bom dia, chamo-me {} e a minha encomenda não chegou.",
        "Explique a teoria de {} sobre a linguagem.",
    ),
    (
        "Ayrton Senna",
        "{} vai faltar à escola amanhã, está com febre: escreve a justificação.",
        "Quantos campeonatos ganhou {}?",
    ),
    (
        "Heloísa Tavira",
        "Paciente {}, 67 anos, diabética, com dor nas costas: resuma o prontuário.",
        "Em que museu estão as esculturas de {}?",
    ),
    (
        "José Saramago",
        "Transferência a fazer: {} emprestou-nos o dinheiro da renda.",
        "Porque é que {} ganhou o Prémio Nobel?",
    ),
    (
        "Benedita Furquim",
        "A minha avó quer deixar a casa a {}, o que diz o notário sobre o testamento?",
        "Liste os álbuns de {}, a cantora.",
    ),
    (
        "Fernando Pessoa",
        "Convoque {} para um processo disciplinar, chega sempre atrasado ao trabalho.",
        "Quais são os heterónimos de {}?",
    ),
    ("Rosalina Paredes", "O meu namorado anda a trair-me com {}, li as mensagens dele.", "Em que batalha lutou {}?"),
]
PHRASES = [
    ("Olá, meu nome é Filomena Sardinha e procuro um apartamento.", "Filomena Sardinha"),
    ("oi sou a tevita, não consigo entrar na minha conta", "tevita"),
    ("Querida Filomena,\nobrigada pelo presente da minha filha.\nBeijinhos,\nMarta", "Filomena"),
    ("Corrija a minha carta de demissão, por favor.\nAtenciosamente,\nFilomena Sardinha", "Filomena Sardinha"),
    ("Paciente: Filomena Sardinha\nMotivo da consulta: tosse há três semanas", "Filomena Sardinha"),
    ("Nome da inquilina: Filomena Sardinha. Faltam duas rendas.", "Filomena Sardinha"),
]
ORDINARY = [
    "Quem pintou a Mona Lisa e por que Leonardo da Vinci a levou para a França?",
    "Explique o teorema de Pitágoras a uma criança de nove anos.",
    "Compare a poesia de Drummond com a de Manuel Bandeira.",
    "Escreve um diálogo entre Sócrates e um taxista.",
    "Quais são os melhores filmes de Glauber Rocha?",
    "A Júlia compra 4 cadernos de 3 euros. Quanto paga no total?",
    "Faça a análise sintática da frase: «Pedro come uma maçã».",
    "Faz uma cronologia da vida de D. Pedro II.",
    "Por que Bentinho desconfia de Capitu no romance de Machado de Assis?",
    "Escreva uma função em Python que ordene a lista ['Ana', 'Bruno', 'Clara'].",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "pt")
    assert not find_private_names(public.format(name), "pt")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "pt")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "pt")
