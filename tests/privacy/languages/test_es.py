"""Spanish: names of private persons are found by their context, names of public knowledge stay."""

import pytest
from tests.privacy.detection import find_private_names

PAIRS = [
    ("Eulalia Montcada", "Mi casera, {}, no me devuelve la fianza del piso.", "¿Quién fue {}, la astrónoma?"),
    (
        "Miguel de Cervantes",
        "Redacta una carta de despido para {}, del turno de noche.",
        "Resume la novela más famosa de {}.",
    ),
    (
        "Iker Zubeldia",
        "El fisio ha citado a {} el lunes por el esguince de tobillo.",
        "¿Qué película dirigió {} en 1994?",
    ),
    ("Julio Cortázar", "{} me debe 200 euros del alquiler y no contesta a mis mensajes.", "Analiza un cuento de {}."),
    (
        "Nayeli Xicoténcatl",
        "Escríbele a {} que la reunión de padres se cambia al jueves.",
        "Cuenta una historia de {}, una bruja que vive en el bosque.",
    ),
    (
        "Diego Velázquez",
        "Mi suegro quiere dejarle la casa en el testamento a {}.",
        "¿En qué museo están los cuadros de {}?",
    ),
    (
        "Rocío Albaladejo",
        "La maestra dice que mi hijo le pegó a {} en el recreo.",
        "{} tiene 15 canicas y regala 4. ¿Cuántas canicas le quedan en total?",
    ),
    ("Simón Bolívar", "Adjunto el currículum de {} para la vacante de camarero.", "¿En qué batallas luchó {}?"),
    (
        "Yago Fontenla",
        "Hola, soy {} y todavía no me ha llegado el paquete.",
        "Compara las teorías de {} con las de Kant.",
    ),
    ("Frida Kahlo", "{} me bloqueó en Instagram después de nuestra ruptura.", "Describe un autorretrato de {}."),
    (
        "Itziar Goenaga",
        "La paciente {} refiere dolor de espalda y toma ibuprofeno; redacta el informe médico.",
        "¿Cuántas medallas olímpicas ganó {}?",
    ),
    ("Rubén Darío", "La nómina de {} tiene un error en las horas extras.", "Explica el modernismo de {}."),
    (
        "Wendy Choquehuanca",
        "Mi novio sigue escribiéndose con {}, su ex, y tengo celos.",
        "¿Qué canciones escribió {} para su primer álbum?",
    ),
    ("Antonio Machado", "Denuncia: {} me amenazó en el portal y rompió mi móvil.", "Comenta dos poemas de {}."),
    (
        "Leocadia Ferreiro",
        "¿Qué le regalo a mi compañera {} por su jubilación?",
        "Enumera los descubrimientos de {}, la química.",
    ),
]
PHRASES = [
    ("Buenos días, me llamo Ainhoa Larrazábal y busco piso.", "Ainhoa Larrazábal"),
    ("hola soy tevita, no puedo entrar en mi cuenta", "tevita"),
    ("Querida Ainhoa:\nGracias por el regalo de mi hija.\nUn abrazo,\nMaite", "Ainhoa"),
    ("Corrige mi carta de renuncia, por favor.\nUn saludo,\nAinhoa Larrazábal", "Ainhoa Larrazábal"),
    ("Paciente: Ainhoa Larrazábal\nMotivo: fiebre desde hace tres días", "Ainhoa Larrazábal"),
    ("Nombre del inquilino: Ainhoa Larrazábal. Debe dos mensualidades.", "Ainhoa Larrazábal"),
]
ORDINARY = [
    "¿Quién pintó el Guernica y por qué lo pintó Picasso?",
    "Explica el teorema de Pitágoras a un niño de diez años.",
    "Compara el estilo de Gabriel García Márquez con el de Juan Rulfo.",
    "Escribe un diálogo entre Sócrates y un taxista.",
    "¿Cuáles son las mejores películas de Pedro Almodóvar?",
    "Lucía compra 4 cuadernos de 3 euros. ¿Cuánto paga en total?",
    "Analiza sintácticamente la oración: «Pedro come una manzana».",
    "Haz una cronología de la vida de Simón Bolívar.",
    "¿Por qué enloquece don Quijote en la novela de Cervantes?",
    "Escribe una función en Python que ordene la lista ['Ana', 'Luis', 'Marta'].",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "es")
    assert not find_private_names(public.format(name), "es")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "es")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "es")
