"""Word lists: first names, last names and cities of Faker's locales, and the common words that are no names.

Everything is in lower case (casefold). Sources: Faker (MIT) and spaCy's stop words (MIT), read from the installed
packages; nothing of them is copied here. The lists in this file are our own.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from eyas.privacy.wordlist_cache import load_cached

LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "sv")  # those whose names the built-in detector finds

_LATIN = re.compile(r"[A-Za-zÀ-ɏḀ-ỿ'’ .-]+\Z")
# Small words inside a name: "Ana de la Cruz", "Vincent van der Berg".
PARTICLES = frozenset(
    """
    de la las los le du des del della dello dei degli di da das do dos van von vom der den ter ten te zu zum zur
    af av bin bint ben ibn al el y e i st san santa mac mc op het 't
    """.split()  # noqa: SIM905
)

# First names that are ordinary words, months, places or products as well: names only where something else says so.
_AMBIGUOUS = frozenset(
    """
    will may mark bill grace hope faith joy art gene rob sue pat chase grant drew dean earl duke prince king rich frank
    don ray lance miles june april august summer autumn dawn eve ivy daisy lily violet olive ginger sandy crystal ruby
    pearl amber jade iris heather hazel basil sage cliff dale glen forest brook brooks river lake stone reed wade chance
    chip buck bud skip tab tag page bob van major victor carol melody harmony charity patience prudence constance mercy
    penny christian jordan paris sydney austin dallas houston madison charlotte florence london india chelsea brooklyn
    phoenix savannah virginia carolina georgia israel chad kenya sierra max min hunter mason carter cooper taylor parker
    porter archer fisher tanner turner walker page baker smith cook knight bishop pope abbey sterling ford lincoln
    jackson kelly jean jack nick norm pierce colt ace blaze cash cruz dash fox hawk jet king law legend love messiah
    royal saint star storm wolf true young golden honor justice journey memory merit noble precious princess treasure
    trinity unity destiny essence fortune genesis heaven liberty miracle angel angela nova aurora stella luna ada julia
    pascal python travis alexa siri claude gemini jenkins maven kafka django jasmine selenium cassandra hugo delphi
    scala dart oracle mercedes tesla bentley royce ernst rose engel heide kai linde viola flora pilar luz rosario mar
    sol dolores consuelo rosa blanca clara alba paz esperanza amparo socorro santos leon pierre marguerite claire ange
    aimé blanche aurore bianca chiara franco luce gioia vita perla marina branca vitória roos björn sten stig ed al jo
    bo ty lee ling long an in on so do go see sea sun son day page doc era eden ember echo dee dolly eagle early easter
    ellis ever field flower friday glory guy holly honey io ion island isle ivory jewel jim-crow judge kit lane laurel
    lark lovely lyric magic magnolia maple mary-land merry misty moon myrtle nile north ocean opal orion otter palm
    patsy peace peach petal poppy prairie quest rain rainbow raven robin rocky rocket rowan rusty sable sailor salem
    season senator shade shadow sherry silver sky snow sonny spring star sunday sunny tempest temple theme tiger timber
    topaz town trace trip troy tuesday vale valley vernon vivid wave west winter world wren zen zion bea bee beau bell
    belle berry bliss bonnie brand brandy bridge briar candy carmine cat cedar chase cherry china clay cloud clover
    colon coral count cove crew cricket cyan cypress denver diamond ebony elm fern gale garden garnet gray green gun
    happy harbor haven ice indigo isis ink jazz job lotus major marvel marshal mauve media metal mint moss music navy
    nest nature nero oak orchid page paisley panda pasture pepper pine prime race ranger red reef rice rye
    sahara sand sapphire satin scout sea shell siren sonnet soul sparrow swan sweet talon tawny teal thorn vega velvet
    violeta webster whisper wild willow wind wing woody asia africa america europa alaska arizona nevada dakota
    montana cleveland columbus orlando santiago valencia lorraine lourdes fatima verona siena florentine vienna geneva
    adonis apollo ares athena atlas hercules hermes juno jupiter mars mercury minerva neptune odin pandora saturn thor
    titan venus zeus amazon apple epic excel ivory java julia lisp pearl perl ruby rust swift haskell turing newton
    mars data worth mile math orange odd ally wash pink brown wood arch ants tea roll said hill loan bird valid hall
    lemon wage burns doll hunt almond ties rush junior constant nail elder lady jail branch bush watt fancy forum gauge
    grove salami banks bitten tone fairy rand oral graves shepherd bale hung harden canyon link collie cinnamon beta
    feline ninja mare urban edit buddy valentine kick yoga lone innocent loot albino narcissus kale alpha foster ward
    ridge lies leafy fleet harsh pearly gala miner governor emit patty blossom marry handy paw mart ping dries joke lean
    lassi bells cotton field gates glass house hour key lock market miller model nice power quick rank rose-bud salt
    seal shore side spice square steel stick table tower train trust union value vector ware water wheat wolf wonder
    delta gamma sigma omega lambda kappa theta zeta iota epsilon tau rho phi psi chi omicron eta romeo juliet oscar
    """.split()  # noqa: SIM905
)

# First names that some list of words holds, and that are names all the same, but for a pronoun of one language.
_SURE = frozenset(
    """
    ada alba ali allen anders angela aurora aurore austin bartolomeo ben bianca björn blanca bob bonnie carol carolina
    cassandra
    charlotte chiara christian claire clara claude consuelo cruz dan darin diego dina dolores dominique elena elke ella
    ernst esperanza fatima flora franco frans glen hanno hans heather helena hugo hélène inga jack jackson jan jasmine
    jean jessa julia julio kelly klas leon leona lorraine lourdes lucia lucie lucía luna lúcia maarten madison
    malte marguerite
    mariana marina marino martin maurice mauricio mia mila mina montserrat máximo nick noël orlando otto parker
    pedro pierre
    pilar rico robin romeo rosa rosario rowan salomón salvador sam santiago sara sean socorro stella sten stig sue
    sydney
    taylor tomé travis trinidad tristan uwe ute vernon vicente victor vincent viola violeta vitória pip weng ling liza
    """.split()  # noqa: SIM905
)
PRONOUNS = {
    "es": frozenset(("ella",)),
    "it": frozenset(("ella", "mia")),
    "pt": frozenset(("ela",)),
    "sv": frozenset(("hans", "inga", "mina", "dina")),
    "pl": frozenset(("sam",)),
    "nl": frozenset(("ben",)),
}

# Words that stand capitalised without being a name. They complete what the packages bring.
_NO_NAMES = frozenset(
    """
    monday tuesday wednesday thursday friday saturday sunday january february march april june july august september
    october november december montag dienstag mittwoch donnerstag freitag samstag sonnabend sonntag januar februar märz
    mai juni juli oktober dezember lundi mardi mercredi jeudi vendredi samedi dimanche janvier février mars avril juin
    juillet août septembre octobre novembre décembre enero febrero marzo mayo junio julio agosto septiembre octubre
    noviembre diciembre lunes martes miércoles jueves viernes sábado gennaio febbraio aprile maggio giugno luglio
    settembre ottobre novembre dicembre janeiro fevereiro março maio junho julho setembro outubro novembro dezembro
    maandag dinsdag woensdag donderdag vrijdag zaterdag zondag januari februari maart juni juli augustus poniedziałek
    wtorek środa czwartek piątek sobota niedziela måndag tisdag onsdag torsdag fredag lördag söndag augusti
    portal yesterday today tomorrow gestern heute hier demain aujourd'hui ayer hoy mañana ieri oggi domani ontem hoje
    amanhã gisteren vandaag wczoraj dzisiaj jutro igår idag imorgon
    mr mrs ms dr prof sir madam dear hi hello hey thanks thank regards sincerely best kind please yes no ok okay also
    english german french spanish italian portuguese dutch polish swedish european american british chinese japanese
    russian indian african asian latin greek roman arabic hebrew hindi korean turkish deutsch englisch französisch
    google microsoft amazon apple facebook meta twitter github gitlab linux windows android python java javascript
    docker kubernetes postgres mysql oracle redis spark hadoop excel word powerpoint outlook chrome firefox safari
    christmas easter thanksgiving halloween ramadan hanukkah passover weihnachten ostern noël pâques navidad natale
    god jesus bible quran torah internet web wifi bluetooth usb pdf html css json xml sql api http https url
    inc ltd llc gmbh ag kg co corp corporation company group holding bank hotel university college school hospital
    institute department ministry office team committee council association foundation museum church street road avenue
    lane drive court boulevard square park garden river lake mountain island bay beach city town village county state
    north south east west northern southern eastern western new old great big little upper lower saint
    chapter section figure table part step question answer example exercise problem solution note task input output
    total subtotal invoice order customer client patient name date number amount price quantity address phone email
    subject from to cc bcc re fwd sent user users admin system assistant manager director president minister king queen
    doctor nurse teacher student professor engineer lawyer officer captain sergeant general major colonel
    mother father brother sister mom mum dad grandma grandpa uncle aunt cousin friend boss colleague neighbor neighbour
    test error warning info debug trace fatal true false none null class function method return value type string list
    what when where who whom whose which why how the a an this that these those there here it he she they we you i if
    let let's given find write explain calculate compute determine solve describe create make use consider suppose
    assume show prove each every all some any many much more most less least first second third last next then after
    before during while until since because although however therefore finally in on at by for with about of and or but
    not do does did is are was were be been has have had can could will would shall should may might must
    everyone everybody anyone anybody someone somebody nobody team folks guys world there all sir madam both
    danish norwegian finnish swiss austrian belgian irish scottish welsh canadian mexican brazilian argentinian egyptian
    israeli iranian iraqi pakistani vietnamese thai filipino indonesian malaysian australian ukrainian hungarian czech
    romanian bulgarian croatian serbian catholic protestant christian muslim jewish buddhist hindu republican democrat
    algorithm algorithms theorem theory method model models matrix vector graph tree node array stack queue heap hash
    binary search sort merge quick bubble insertion linear regression neural network networks deep machine learning data
    science engineering software hardware developer analyst scientist cloud platform service services server servers
    client database query queries table index schema cache token tokens key keys password secret api endpoint request
    response header body status code error exception stack trace log logs build release version update upgrade patch
    commit branch pull push merge issue ticket bug feature task project sprint backlog story epic roadmap milestone
    quarter quarterly annual monthly weekly daily report reports summary overview introduction conclusion appendix
    abstract analysis results discussion background objective objectives goal goals plan plans strategy budget revenue
    profit loss income expense expenses tax taxes balance sheet cash flow asset assets liability equity stock market
    trade deal sales marketing product products brand campaign social media content email newsletter blog post article
    review rating feedback support help center centre contact privacy policy terms conditions agreement contract license
    legal law court case act bill rights human resources finance accounting operations logistics supply chain inventory
    shipping delivery tracking package parcel return refund exchange discount coupon gift card loyalty rewards points
    member membership subscription trial premium basic standard professional enterprise edition pro plus max mini lite
    apache kafka spring gradle maven hunter nginx mongodb hadoop hive airflow grafana prometheus terraform ansible
    galaxy universe planet earth moon sun star stars solar system space station mission ocean sea atlantic pacific
    mountain forest desert valley canyon national international global local regional federal royal imperial united
    nations union kingdom republic empire world war battle revolution independence day night morning evening afternoon
    spring summer autumn fall winter season century decade millennium renaissance medieval modern ancient classical
    music song album band concert festival movie film series episode character actor actress director novel book books
    author chapter poem poetry art artist painting gallery exhibition theater theatre opera ballet dance game games
    player players team league cup championship final finals season olympic olympics football soccer basketball baseball
    tennis hockey golf health medical medicine clinical patient doctor nurse hospital clinic pharmacy disease syndrome
    disorder cancer diabetes blood pressure heart rate brain cell cells gene protein virus vaccine therapy treatment
    diagnosis symptom symptoms surgery emergency care unit chemistry physics biology mathematics math geometry algebra
    calculus statistics probability equation formula function functions variable constant integer float boolean string
    decimal hexadecimal unix timestamp iso utc gmt est pst cet uuid sha md5 base utf ascii unicode regex json yaml
    visual studio code text editor terminal shell command prompt script python javascript typescript rust golang swift
    kotlin scala ruby perl php react angular vue node express django flask spring boot rails laravel tensorflow pytorch
    pandas numpy jupyter notebook github actions jenkins pipeline container kubernetes cluster pod deployment namespace
    samsung galaxy sony nokia intel nvidia amd ibm hp dell lenovo tesla toyota honda ford bmw audi mercedes volkswagen
    boeing airbus nasa nato unesco wikipedia youtube instagram whatsapp telegram tiktok netflix spotify uber airbnb
    paypal visa mastercard stripe shopify ebay etsy walmart ikea starbucks mcdonald's nike adidas coca cola pepsi
    greedy dynamic programming recursive iterative sequence series prime number numbers odd even sum product difference
    quotient ratio fraction percent percentage average mean median mode range variance deviation absolute standard
    maximum minimum upper lower left right top bottom front back first second third primary secondary main total
    voting majority minority pavilion aquatic digest gazette journal magazine newspaper times post herald tribune
    street road shop store mall restaurant café cafe bakery pizza burger coffee tea station airport terminal gate
    platform train bus taxi car truck bike boat ship flight airline airlines tower bridge castle palace temple mosque
    cathedral zoo aquarium library theater stadium arena gym pool playground elementary middle high primary secondary
    students customers visitors workers employees teachers children kids boys girls men women people families parents
    company companies shops stores farmers dogs cats birds horses cows chickens apples oranges books pens cars
    lost stuck tired confused trying looking having sure happy sad sorry late sick hungry bored back home done ready
    kindly urgent important confidential private attention notice warning reminder confirmation
    herr frau herrn damen sehr geehrte geehrter liebe lieber hallo guten morgen tag abend grüße grüßen danke bitte
    rechnung kunde kundin patient patientin datum betrag nummer adresse straße telefon betreff firma summe steuer preis
    zeit jahr jahre monat woche stunde minute uhr geld haus auto arbeit leben mensch menschen kind kinder frage antwort
    termin termine vertrag konto bank schule buch brief hund katze wasser brot kaffee tee essen garten problem lösung
    beispiel aufgabe text satz wort sprache land stadt problem programm daten datei code fehler system server euro
    cent prozent meter kilometer gramm kilo liter mann mutter vater bruder schwester freund freundin chef chefin kollege
    kollegin nachbar nachbarin arzt ärztin lehrer lehrerin äpfel apfel schlüssel fahrrad zug bahn bus flug hilfe
    bonjour salut merci madame monsieur cordialement facture client cher chère bonsoir rue ville pays maison
    hola gracias señor señora saludos factura cliente estimado estimada querido querida calle ciudad casa
    ciao salve grazie signor signora saluti fattura cliente gentile caro cara via città casa buongiorno
    olá oi obrigado obrigada senhor senhora fatura cliente prezado prezada caro cara rua cidade casa bom boa
    beste geachte hoi bedankt groeten factuur klant meneer mevrouw straat stad huis dank
    cześć dzień dobry dziękuję pan pani panie szanowny szanowna faktura klient drogi droga ulica miasto dom
    hej tack hälsningar faktura kund herr fru gata stad hus bästa kära käre
    """.split()  # noqa: SIM905
)

# Faker has no list of cities for these countries; large cities of the world, each a fact.
_CITIES = """
    New York|Los Angeles|Chicago|Houston|Philadelphia|San Antonio|San Diego|Dallas|San Jose|Austin|Jacksonville|Columbus
    Charlotte|San Francisco|Indianapolis|Seattle|Denver|Washington|Boston|Nashville|Detroit|Oklahoma City|Portland
    Las Vegas|Memphis|Louisville|Baltimore|Milwaukee|Albuquerque|Tucson|Fresno|Sacramento|Kansas City|Atlanta|Omaha
    Colorado Springs|Raleigh|Miami|Oakland|Minneapolis|Tulsa|Tampa|New Orleans|Cleveland|Honolulu|Orlando|St. Louis
    Pittsburgh|Cincinnati|Anchorage|Buffalo|Boise|Salt Lake City|Toronto|Montreal|Vancouver|Calgary|Ottawa|Edmonton
    Winnipeg|Quebec|Halifax|London|Birmingham|Manchester|Liverpool|Leeds|Sheffield|Bristol|Glasgow|Edinburgh|Cardiff
    Belfast|Newcastle|Nottingham|Leicester|Southampton|Portsmouth|Brighton|Oxford|Cambridge|York|Norwich|Exeter|Dublin
    Cork|Galway|Limerick|Sydney|Melbourne|Brisbane|Perth|Adelaide|Canberra|Hobart|Auckland|Wellington|Christchurch
    Paris|Marseille|Lyon|Toulouse|Nice|Nantes|Montpellier|Strasbourg|Bordeaux|Lille|Rennes|Reims|Toulon|Grenoble|Dijon
    Angers|Nîmes|Clermont-Ferrand|Le Mans|Brest|Tours|Amiens|Limoges|Annecy|Metz|Besançon|Orléans|Rouen|Mulhouse|Caen
    Nancy|Avignon|Genève|Lausanne|Bruxelles|Liège|Berlin|Hamburg|München|Köln|Frankfurt|Stuttgart|Düsseldorf|Leipzig
    Dortmund|Essen|Bremen|Dresden|Hannover|Nürnberg|Duisburg|Bochum|Wuppertal|Bielefeld|Bonn|Münster|Mannheim|Karlsruhe
    Augsburg|Wiesbaden|Mönchengladbach|Gelsenkirchen|Aachen|Braunschweig|Kiel|Chemnitz|Halle|Magdeburg|Freiburg|Krefeld
    Mainz|Lübeck|Erfurt|Rostock|Kassel|Potsdam|Heidelberg|Darmstadt|Regensburg|Würzburg|Ulm|Zürich|Bern|Basel|Wien|Graz
    Linz|Salzburg|Innsbruck|Madrid|Barcelona|Valencia|Sevilla|Zaragoza|Málaga|Murcia|Palma|Bilbao|Alicante|Córdoba
    Valladolid|Vigo|Gijón|Granada|La Coruña|Vitoria|Oviedo|Pamplona|Santander|Salamanca|Burgos|Bogotá|Lima|Quito
    Buenos Aires|Santiago de Chile|Montevideo|Caracas|Guadalajara|Monterrey|Puebla|Tijuana|Medellín|Cali|Roma|Milano
    Napoli|Torino|Palermo|Genova|Bologna|Firenze|Bari|Catania|Venezia|Verona|Messina|Padova|Trieste|Brescia|Parma|Modena
    Perugia|Cagliari|Livorno|Rimini|Bergamo|Lisboa|Porto|Braga|Coimbra|Aveiro|Setúbal|Évora|Faro|Leiria|Funchal
    São Paulo|Rio de Janeiro|Salvador|Brasília|Fortaleza|Belo Horizonte|Manaus|Curitiba|Recife|Porto Alegre|Belém
    Goiânia|Campinas|Florianópolis|Natal|Amsterdam|Rotterdam|Den Haag|Utrecht|Eindhoven|Groningen|Tilburg|Almere|Breda
    Nijmegen|Apeldoorn|Haarlem|Arnhem|Leiden|Delft|Maastricht|Antwerpen|Gent|Brugge|Leuven|Warszawa|Kraków|Łódź|Wrocław
    Poznań|Gdańsk|Szczecin|Bydgoszcz|Lublin|Białystok|Katowice|Gdynia|Częstochowa|Radom|Toruń|Rzeszów|Kielce|Olsztyn
    Stockholm|Göteborg|Malmö|Uppsala|Västerås|Örebro|Linköping|Helsingborg|Jönköping|Norrköping|Lund|Umeå|Gävle|Borås
    Oslo|Bergen|Trondheim|København|Copenhagen|Aarhus|Odense|Helsinki|Tampere|Turku|Prague|Brno|Vienna|Munich|Cologne
    Rome|Milan|Naples|Turin|Venice|Lisbon|Warsaw|Brussels|Zurich|Geneva|Budapest|Bucharest|Sofia|Athens|Istanbul|Ankara
    Kyiv|Moscow|Tokyo|Osaka|Kyoto|Seoul|Busan|Beijing|Shanghai|Shenzhen|Hong Kong|Taipei|Singapore|Bangkok|Hanoi|Manila
    Jakarta|Mumbai|Delhi|Bangalore|Chennai|Kolkata|Hyderabad|Karachi|Lahore|Dhaka|Cairo|Lagos|Nairobi|Accra|Cape Town
    Johannesburg|Durban|Casablanca|Tunis|Tel Aviv|Dubai|Doha|Riyadh|Tehran|Baghdad|Beirut|Amman
"""
# Countries and states whose names people bear.
_STATES = frozenset(
    """
    jordan chad israel georgia virginia carolina washington dakota montana kenya india
    """.split()  # noqa: SIM905
)
_CORE_LOCALES = tuple(
    """
    en_US en_GB de_DE de_AT de_CH fr_FR fr_CH es_ES es_MX it_IT pt_PT pt_BR nl_NL nl_BE pl_PL sv_SE da_DK no_NO
    """.split()  # noqa: SIM905
)
_CITY_LOCALES = ("de_AT", "de_CH", "de_DE", "nl_BE", "nl_NL", "pl_PL", "pt_PT", "sv_SE", "it_IT")


@dataclass(frozen=True)
class Lexicon:
    """The lists, in lower case."""

    first_names: frozenset[str]  # ambiguous ones included
    last_names: frozenset[str]
    ambiguous: frozenset[str]  # first names that are words as well
    stop: frozenset[str]  # words that are never part of a name
    common: frozenset[str]  # words that are no name by themselves, in the nine languages; stop included
    cities: frozenset[str]  # up to three words, joined by one space
    core_names: frozenset[str]  # first names of the countries where the nine languages are spoken
    sure_names: frozenset[str]  # first names that are no word: enough by themselves, where capitalised


@cache
def load_lexicon() -> Lexicon:
    """The lists: computed in seconds once, then read from the user's cache directory in a tenth of a second."""
    return Lexicon(**load_cached("lexicon", _lists))


def _lists() -> dict[str, frozenset[str]]:
    """The fields of a Lexicon."""
    first, last = _names(_locales("person"))
    core, _ = _names(_CORE_LOCALES)
    core |= _SURE
    stop = _stop_words() - _SURE
    common = (stop | _common_words(core)) - _SURE
    first |= _SURE
    ambiguous = frozenset(first & (common | _AMBIGUOUS)) - _SURE
    # Three letters are a word in some language, unless people of the nine languages bear the name.
    sure = frozenset(name for name in first - ambiguous if len(name) > (2 if name in core else 3))
    return {
        "first_names": first,
        "last_names": last,
        "ambiguous": ambiguous,
        "stop": stop,
        "common": common,
        "cities": _cities() | _STATES,
        "core_names": core,
        "sure_names": sure,
    }


def first_names(locale: str) -> tuple[str, ...]:
    """First names as Faker's locale spells them, one word each, sorted: surrogates are picked from them."""
    return _one_word(_provider("person", locale), "first")


def last_names(locale: str) -> tuple[str, ...]:
    """Last names as Faker's locale spells them, one word each, sorted."""
    return _one_word(_provider("person", locale), "last")


def city_names(language: str) -> tuple[str, ...]:
    """Large cities for surrogates: of the language's country where Faker has a list, else of the world."""
    locale = {"de": "de_DE", "nl": "nl_NL", "pl": "pl_PL", "sv": "sv_SE", "pt": "pt_PT"}.get(language)
    listed = _listed(_provider("address", locale), "cities") if locale else _world_cities()
    return tuple(sorted({name for name in listed if " " not in name and name.isalpha()}))


def _one_word(provider: Any, part: str) -> tuple[str, ...]:
    names = {name for attribute in dir(provider) if part in attribute for name in _listed(provider, attribute)}
    common = load_lexicon().common | _AMBIGUOUS
    return tuple(sorted(name for name in names if name.isalpha() and len(name) > 2 and name.casefold() not in common))


def _names(locales: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    parts: dict[str, set[str]] = {"first": set(), "last": set()}
    for locale in locales:
        provider = _provider("person", locale)
        for attribute in dir(provider):
            for part, words in parts.items():
                if part in attribute:
                    for name in _listed(provider, attribute):
                        if _LATIN.match(name):
                            words.update(word.casefold().replace("’", "'") for word in re.split("[ -]", name))
    small = {word for words in parts.values() for word in words if len(word) < 2 or "." in word} | PARTICLES
    return frozenset(parts["first"] - small), frozenset(parts["last"] - small)


def _stop_words() -> frozenset[str]:
    stop: set[str] = set(_NO_NAMES)
    for language in LANGUAGES:
        stop.update(_module(f"spacy.lang.{language}.stop_words").STOP_WORDS)
    for locale in ("en_US", "de_DE", "fr_FR", "es_ES", "it_IT", "pt_PT", "nl_NL", "pl_PL", "sv_SE"):
        for country in _listed(_provider("address", locale), "countries"):
            stop.update(set(re.split(r"\W+", country.casefold())) - _STATES)
    for state in _listed(_provider("address", "en_US"), "states"):
        stop.update(set(state.casefold().split()) - _STATES)
    return frozenset(stop - {""})


def _common_words(first: frozenset[str]) -> frozenset[str]:
    words: set[str] = set()
    for locale in ("en_US", "de_DE", "nl_NL"):
        words.update(word.casefold() for word in _provider("lorem", locale).word_list)
    for locale in ("fr_FR", "es_ES", "it_IT", "pl_PL"):  # these hold the names of well-known people too
        words.update(word.casefold() for word in _provider("lorem", locale).word_list if word.casefold() not in first)
    for job in _listed(_provider("job", "en_US"), "jobs"):
        words.update(re.split(r"\W+", job.casefold()))
    return frozenset(words)


def _cities() -> frozenset[str]:
    names = set(_world_cities())
    for locale in _CITY_LOCALES:
        listed = set(_listed(_provider("address", locale), "cities"))
        # Italy's list names every hamlet, ordinary words among them: those of two words or more than six letters.
        names |= {name for name in listed if locale != "it_IT" or len(name) > 6}
    small = {name.casefold() for name in names if len(name) < 4 or len(name.split()) > 3}
    return frozenset(name.casefold() for name in names) - small - _NO_NAMES


def _world_cities() -> list[str]:
    return [name.strip() for line in _CITIES.split("\n") for name in line.split("|") if name.strip()]


def _locales(topic: str) -> list[str]:
    package = _module(f"faker.providers.{topic}")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def _provider(topic: str, locale: str) -> Any:
    return _module(f"faker.providers.{topic}.{locale}").Provider


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _listed(provider: Any, attribute: str) -> list[str]:
    value = getattr(provider, attribute, None)
    return list(_texts(value)) if isinstance(value, tuple | list | dict) else []


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list | dict | set):
        for item in value:
            yield from _texts(item)
