"""Words of the small world that the embedded target speaks about: topics, people, towns. Ours, written for eyas."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """One subject: plural things, plain verbs (regular past in -ed), qualities, places, the people who do it."""

    name: str
    things: tuple[str, ...]
    verbs: tuple[str, ...]
    qualities: tuple[str, ...]
    places: tuple[str, ...]
    people: tuple[str, ...]

    def draw_words(self, rng: random.Random) -> dict[str, str | tuple[str, ...]]:
        """The words of a text that keeps to one thing and one place of the topic."""
        return {
            "topic": self.name,
            "thing": rng.choice(self.things),
            "verb": self.verbs,
            "quality": self.qualities,
            "place": rng.choice(self.places),
            "person": self.people,
        }


def _topic(name: str, things: str, verbs: str, qualities: str, places: str, people: str) -> Topic:
    return Topic(
        name,
        tuple(things.split()),
        tuple(verbs.split()),
        tuple(qualities.split()),
        tuple(places.split(", ")),
        tuple(people.split()),
    )


TOPICS: tuple[Topic, ...] = (
    _topic(
        "gardening",
        "tomatoes roses seeds beans herbs tulips carrots hedges bulbs apples",
        "water plant trim harvest fertilize weed pick shelter",
        "fresh green ripe healthy shady dry sunny sturdy",
        "the back garden, the greenhouse, the orchard, the allotment",
        "gardener neighbour botanist florist",
    ),
    _topic(
        "cooking",
        "onions noodles potatoes sauces pies mushrooms spices lentils dumplings pans",
        "chop roast season boil taste bake simmer peel",
        "tender salty crisp warm creamy spicy sweet golden",
        "the kitchen, the canteen, the bakery, the market hall",
        "cook baker waiter chef",
    ),
    _topic(
        "travel",
        "tickets suitcases maps passports hotels trains guidebooks cabins ferries routes",
        "book pack plan cancel visit board explore compare",
        "cheap scenic crowded quiet direct comfortable remote early",
        "the harbour, the central station, the old town, the airport",
        "traveller guide driver conductor",
    ),
    _topic(
        "music",
        "guitars songs drums violins concerts melodies strings rehearsals records pianos",
        "tune record practise perform compose play rehearse listen",
        "loud gentle slow bright rhythmic famous acoustic cheerful",
        "the concert hall, the studio, the rehearsal room, the open stage",
        "singer drummer composer teacher",
    ),
    _topic(
        "software",
        "servers tests reports queries backups screens passwords modules logs releases",
        "test deploy review restart measure document refactor monitor",
        "stable slow broken secure simple outdated fast readable",
        "the data centre, the office, the test lab, the meeting room",
        "developer tester analyst administrator",
    ),
    _topic(
        "sport",
        "races matches medals shoes bicycles teams goals bandages trophies helmets",
        "train stretch score coach warm defend pass jump",
        "strong tired fast fair injured young tough steady",
        "the stadium, the gym, the running track, the swimming pool",
        "runner coach referee goalkeeper",
    ),
    _topic(
        "health",
        "bandages tablets checkups vitamins clinics muscles symptoms appointments sensors blankets",
        "rest examine monitor treat protect call measure comfort",
        "mild painful regular sensible serious common careful healthy",
        "the clinic, the pharmacy, the waiting room, the recovery ward",
        "nurse doctor patient pharmacist",
    ),
    _topic(
        "weather",
        "storms clouds forecasts umbrellas floods winds thermometers shelters roofs warnings",
        "predict cover cancel check shelter observe record delay",
        "heavy cold windy mild sudden humid cloudy dangerous",
        "the coast, the valley, the weather station, the mountain pass",
        "farmer sailor forecaster ranger",
    ),
    _topic(
        "building",
        "bricks windows ladders walls bridges beams doors tiles pipes cranes",
        "repair paint measure insulate replace lift polish inspect",
        "solid wooden leaky modern narrow heavy cracked spacious",
        "the building site, the workshop, the cellar, the top floor",
        "carpenter plumber architect painter",
    ),
    _topic(
        "school",
        "lessons books exams essays classrooms pencils projects timetables posters notebooks",
        "explain correct study discuss repeat present collect prepare",
        "difficult clear useful boring short curious patient clever",
        "the library, the classroom, the playground, the lecture hall",
        "teacher pupil librarian student",
    ),
    _topic(
        "animals",
        "horses kittens cages fences goats feathers blankets saddles rabbits puppies",
        "feed groom rescue train shelter calm follow brush",
        "playful shy hungry gentle wild nervous calm old",
        "the stable, the shelter, the meadow, the animal clinic",
        "vet farmer keeper volunteer",
    ),
    _topic(
        "shopping",
        "orders parcels receipts discounts baskets invoices coupons shelves samples prices",
        "order return compare deliver refund pack scan label",
        "cheap late expensive damaged popular small free sturdy",
        "the warehouse, the corner shop, the counter, the loading dock",
        "customer cashier courier manager",
    ),
    _topic(
        "energy",
        "panels batteries turbines meters heaters cables lamps pumps boilers grids",
        "install charge connect inspect reduce measure switch replace",
        "efficient costly reliable old renewable hot local noisy",
        "the power station, the roof, the control room, the wind farm",
        "engineer electrician operator inspector",
    ),
    _topic(
        "art",
        "paintings brushes frames sculptures sketches colours exhibitions posters murals vases",
        "sketch frame display restore paint sell admire lend",
        "bright modern delicate rare bold unusual famous dark",
        "the gallery, the museum, the attic studio, the town square",
        "painter curator collector sculptor",
    ),
    _topic(
        "fishing",
        "boats nets hooks lobsters anchors ropes sails buckets trout oars",
        "catch row repair anchor clean release weigh sail",
        "calm deep salty patient slippery silver wet lucky",
        "the pier, the lake, the river mouth, the fish market",
        "fisherman captain angler sailor",
    ),
    _topic(
        "astronomy",
        "telescopes stars planets lenses comets charts moons orbits cameras satellites",
        "observe record focus calculate photograph compare track discover",
        "faint bright distant clear cold round rare silent",
        "the observatory, the hill, the planetarium, the dark field",
        "astronomer student physicist visitor",
    ),
)

NAMES: tuple[str, ...] = tuple(
    (
        "Anna Boris Clara David Elena Felix Greta Hugo Irene Jonas Karla Leon Mira Nils Olga Pavel Queenie Rosa Simon Tara "
        "Uma Victor Wanda Xenia Yusuf Zoe Amir Bella Cyrus Dora Emil Fatima Gustav Helga Ivan Julia Kofi Lena Marco Nadia "
        "Oscar Petra Rashid Sofia Tomas Ulla Vera Walter Yara Zeno Alma Bruno Celia Dario Edda Farid Gita Henry Ines Jakob "
        "Keiko Lars Maya Noor Otto Paula Ravi Selma Timo Ursula Viola Wim Yvette Zara Aldo Birgit Chen Delia Ezra Flora"
    ).split()
)
"""Eighty first names."""

_TOWN_STARTS = (
    "Al Ber Cor Dun El Fal Gar Hol Ist Jor Kel Lor Mar Nor Ost Pel Quin Ros Sal Tal Ul Ver Wes Yar Zel".split()
)
_TOWN_ENDS = "mere vik ford stad bury wick haven dorf mouth field gate bridge".split()
TOWNS: tuple[str, ...] = tuple(start + end for start in _TOWN_STARTS for end in _TOWN_ENDS)
"""Three hundred invented towns."""

WEEKDAYS: tuple[str, ...] = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
MONTHS: tuple[str, ...] = tuple(
    "January February March April May June July August September October November December".split()
)
TONES: tuple[str, ...] = ("plain", "warm", "brisk", "formal", "curious", "careful")
"""A tone decides which of several ways to say a thing is the likely one."""
