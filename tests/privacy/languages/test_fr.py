"""French: names of private persons are found by their context, names of public knowledge stay."""

import pytest
from tests.privacy.detection import find_private_names

PAIRS = [
    (
        "Maëlle Tavernot",
        "Ma voisine du dessus, {}, fait du bruit toute la nuit, que dit le règlement ?",
        "Qui était {}, la sculptrice ?",
    ),
    (
        "Victor Hugo",
        "{} n'a pas rendu les clés de l'appartement après l'état des lieux.",
        "Résume le chapitre le plus connu de {}.",
    ),
    (
        "Gaspard Lhermitte",
        "Rédige un mail de relance : {} n'a toujours pas réglé ma facture.",
        "Quelle bataille {} a-t-il gagnée ?",
    ),
    (
        "Édith Piaf",
        "Les résultats de la prise de sang de ma patiente {} sont arrivés.",
        "Compare les chansons de {} et celles de Brel.",
    ),
    (
        "Noor Benslimane",
        "Mon fils s'est disputé avec {} à la récré, j'écris à la maîtresse.",
        "Écris une histoire avec {}, une pirate.",
    ),
    (
        "Aristide Bonnefoy",
        "Je cherche un cadeau pour le départ à la retraite de {}, ma collègue.",
        "Quel roman d'{} a reçu le Goncourt ?",
    ),
    ("Marie Curie", "Le CV de {} est arrivé pour le poste d'aide-soignante.", "Explique les découvertes de {}."),
    (
        "Tiago Ferrand",
        "On part en vacances avec {} et sa copine, comment partager le loyer du gîte ?",
        "{} a 12 billes et en perd 5. Combien lui en reste-t-il ?",
    ),
    ("Solène Quéméner", "Je m'appelle {} et je n'ai pas reçu mon colis.", "Que sait-on de la philosophe {} ?"),
    (
        "Jean Moulin",
        "{} m'a bloquée sur Insta depuis notre rupture, j'en pleure.",
        "Quel rôle a joué {} dans la Résistance ?",
    ),
    (
        "Wassim Kadri",
        "Le kiné a vu {} hier : rééducation du genou trois fois par semaine.",
        "Cite trois films réalisés par {}.",
    ),
    (
        "Apolline Rochas",
        "Convoquez {} à un entretien préalable, elle a quitté son poste.",
        "Dans quel musée sont les tableaux d'{} ?",
    ),
    (
        "Émile Zola",
        "Virement à faire : {} nous a avancé la caution de la coloc.",
        "Dissertation : le naturalisme chez {}.",
    ),
    (
        "Bérénice Oulmont",
        "Mamie veut léguer sa maison à {}, que dit le notaire ?",
        "Fais une chronologie des albums de {}.",
    ),
    (
        "Kylian Mbappé",
        "{} sera absent demain à l'école, il a de la fièvre.",
        "Combien de buts {} a-t-il marqués en Coupe du monde ?",
    ),
]
PHRASES = [
    ("Bonjour, je m'appelle Ysaline Corbier et je cherche un appartement.", "Ysaline Corbier"),
    ("salut moi c'est tevita, je n'arrive pas à me connecter à mon compte", "tevita"),
    ("Chère Ysaline,\nmerci pour le cadeau d'anniversaire de mon fils !\nÀ bientôt,\nMarion", "Ysaline"),
    ("Peux-tu corriger ma lettre de démission ?\nCordialement,\nYsaline Corbier", "Ysaline Corbier"),
    ("Patiente : Ysaline Corbier\nMotif : douleurs au dos depuis un mois", "Ysaline Corbier"),
    ("Nom du locataire : Ysaline Corbier. Le loyer de mars est impayé.", "Ysaline Corbier"),
]
ORDINARY = [
    "Qui a peint la Joconde, et où Léonard de Vinci l'a-t-il peinte ?",
    "Explique le théorème de Pythagore à un élève de quatrième.",
    "Compare la politique étrangère de Charles de Gaulle et celle de François Mitterrand.",
    "Écris un dialogue entre Socrate et un vendeur de voitures.",
    "Quels sont les meilleurs films de Louis de Funès ?",
    "Camille achète 3 livres à 8 euros. Combien paie-t-elle en tout ?",
    "Conjugue le verbe de la phrase « Paul mange une pomme » au futur simple.",
    "Raconte la vie de Jeanne d'Arc en dix phrases.",
    "Pourquoi Emma Bovary s'endette-t-elle dans le roman de Flaubert ?",
    "Écris une fonction Python qui trie la liste ['Anna', 'Bob', 'Chloé'].",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "fr")
    assert not find_private_names(public.format(name), "fr")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "fr")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "fr")
