"""Words that a person's name follows or goes before in running prose, in nine languages. Our own lists."""

from eyas.privacy.tokens import strip_accents


def word_set(text: str) -> frozenset[str]:
    """The words of a text, and longer ones without their accents as well: so they are written in a hurry."""
    return frozenset(
        way for word in text.split() for way in ((word, strip_accents(word)) if len(word) > 3 else (word,))
    )


def by_language(text: str) -> dict[str, frozenset[str]]:
    """`word_set` for each language, whose code begins the lines of its words."""
    found: dict[str, frozenset[str]] = {}
    for line in filter(None, map(str.strip, text.split("\n"))):
        language, _, words = line.partition(" ")
        found[language] = found.get(language, frozenset()) | word_set(words)
    return found


POSSESSIVES = word_set(
    """
    my our your his her their
    mein meine meinem meinen meiner meines unser unsere unserem unseren unserer sein seine seinem seinen seiner ihr ihre
    ihrem ihren ihrer dein deine deinem deiner
    mon ma mes notre nos votre ton ta son sa leur
    mi mis nuestro nuestra tu su mio mia mio nostro nostra suo sua tuo tua
    meu minha nosso nossa seu teu tua
    mijn onze ons jouw zijn haar hun
    mój moja moje mojej mojego mojemu moją moim nasz nasza naszej naszego naszemu jego jej swojej swojego swojemu
    min mitt mina vår vårt din hans hennes
    """
)
# Who somebody is: a capitalised name may follow, behind a possessive in lower case too.
RELATIONS = word_set(
    """
    friend boyfriend girlfriend crush date buddy mate pal bestie sister brother sis bro mother father mom mum
    dad mama papa son daughter wife husband
    aunt uncle auntie cousin nephew niece grandma grandpa grandmother grandfather granny stepmother stepfather
    stepsister stepbrother boss manager colleague coworker supervisor landlord landlady neighbor neighbour roommate
    flatmate housemate girlfriend boyfriend fiancé fiancée partner ex therapist doctor dentist lawyer accountant
    teacher
    tutor coach patient client customer tenant employee intern student classmate babysitter nanny godmother
    godfather
    godson goddaughter trainer mentor hairdresser plumber
    freund freundin kumpel schwester bruder mutter vater sohn tochter frau mann ehefrau ehemann tante onkel cousine
    neffe nichte oma opa chef chefin kollege kollegin kollegen vermieter vermieterin nachbar nachbarin nachbarn
    mitbewohner mitbewohnerin partnerin lehrer lehrerin ärztin arzt zahnarzt anwalt anwältin patient
    patientin kunde kundin kunden mieter mieterin schüler schülerin mitarbeiter mitarbeiterin schwager schwägerin
    schwiegermutter schwiegervater
    ami amie copain copine sœur soeur frère mère père maman fils fille femme mari tante oncle cousin cousine neveu
    nièce mamie papi patron patronne collègue propriétaire voisin voisine colocataire patiente cliente locataire
    professeur maîtresse médecin avocat élève belle-mère beau-père
    amigo amiga hermana hermano madre padre mamá papá hijo hija esposa esposo mujer marido tía tío primo prima
    sobrino
    sobrina abuela abuelo jefe jefa compañero compañera colega casero casera vecino vecina novio novia paciente
    cliente
    inquilino inquilina profesor profesora alumno alumna médico abogada abogado suegra suegro cuñada cuñado
    amico amica sorella fratello mamma papà figlio figlia moglie marito zia zio cugino cugina nipote nonna nonno
    capo
    collega padrona vicino vicina fidanzato fidanzata ragazza ragazzo coinquilina coinquilino paziente maestra
    maestro
    insegnante alunno alunna suocera cognata cognato
    amiga irmã irmão mãe pai filho filha esposa marido mulher tia tio primo prima sobrinho sobrinha avó avô chefe
    senhorio senhoria vizinho vizinha namorado namorada paciente cliente inquilino inquilina professora aluno aluna
    sogra sogro cunhada cunhado
    vriend vriendin zus broer moeder vader zoon dochter vrouw man tante oom neef nicht oma opa baas collega huisbaas
    buurman buurvrouw huisgenoot huurder klant leraar lerares juf patiënt patiënte huisarts schoonmoeder
    przyjaciel przyjaciela przyjacielowi przyjaciółka przyjaciółki przyjaciółce przyjaciółkę przyjaciółką
    chłopak chłopaka
    chłopakowi chłopakiem dziewczyna dziewczyny dziewczynie dziewczynę dziewczyną kumpel kumpla kumplowi kumplem
    współlokator współlokatorka współlokatora współlokatorki współlokatorce współlokatorowi współlokatorem
    współlokatorką
    sąsiadowi sąsiadce ziomek ziomka ziomkowi promotor promotora promotorowi promotorem trener trenera trenerowi
    trenerka
    narzeczony narzeczona narzeczonego narzeczonej narzeczonemu wnuk wnuka wnukowi wnuczka wnuczki wnuczce
    wnuczkę teść
    teścia szwagier szwagra szwagierka kuzyna kuzynowi kuzynce kuzynką wujka wujkowi cioci ciocię ciotka ciotki
    siostrzeniec
    bratanek bratanica synek synka córeczka córeczki niania niani opiekunka wychowawczyni fryzjerka właścicielka
    właściciela mężowi żonie ojciec ojca ojcu ojcem matki matce
    koledze koleżance koleżankę szefowi szefem szefową bratem bratowa teściowa teściowej synem synowi córce
    mamie tacie
    babci dziadkowi siostra siostry siostrze siostrą siostrę brat brata bratu matka mama mamy tata
    syn syna córka córki córkę żona żony mąż męża ciocia wujek kuzyn kuzynka babcia dziadek szef szefowa szefa
    kolega
    kolegi koleżanka koleżanki sąsiad sąsiadka sąsiada sąsiadki pacjent pacjentka pacjenta pacjentki klient klientka
    klienta najemca lokator nauczyciel nauczycielka uczeń uczennica lekarz
    vän vännen väninna kompis syster bror mamma pappa son dotter fru man moster faster morbror farbror kusin mormor
    farmor morfar farfar chef kollega kollegan hyresvärd granne grannen sambo flickvän pojkvän patient patienten
    kund
    kunden hyresgäst hyresgästen lärare läraren elev eleven svärmor
    """
)
# "A message for X", "nachricht an X".
MESSAGE_WORDS = word_set(
    """
    message messages msg text email e-mail mail note card letter dm sms reply invitation invite toast speech gift
    present nachricht mail brief karte einladung antwort geschenk whatsapp geburtstagskarte kärtchen
    courriel lettre carte texto invitation cadeau réponse mot mensaje mensajito correo carta tarjeta regalo invitación
    respuesta messaggio messaggino lettera biglietto regalo invito risposta mensagem e-mail cartão carta bilhete convite
    presente recado bericht berichtje mailtje brief kaartje kaart uitnodiging cadeau appje briefje
    wiadomość wiadomości maila list kartkę kartka zaproszenie prezent odpowiedź sms-a smsa życzenia
    meddelande mejl brev kort vykort inbjudan present svar hälsning
    """
)
RECIPIENT_WORDS = word_set(
    """
    to for an für à pour a para al per pra pro ao à aan voor do dla till åt
    """
)
# What stands behind a name in lower case at the end of "message to X": the clause goes on.
CLAUSE_WORDS = word_set(
    """
    that about saying telling asking and who because from with who's she he dass ob und wegen die der dass, mit weil
    que qui pour et parce qu' pourquoi avec con e y porque per che di perché sobre dizendo diciendo dicendo com
    dat om en over met waarin że żeby i z o bo att om och som med
    """
)
# Verbs of saying, living and feeling: their subject is a person, in every text.
HUMAN_VERBS = word_set(
    """
    said says told tells asked asks wrote writes texted emailed replied replies answered lives lived married thinks
    thought believes hopes hoped adores adored loves loved likes hates hated smiled laughed cried shouted whispered
    sighed nodded complained reported prescribed baked cooked studies studied teaches taught sings sang dances danced
    plays played works worked won turns turned graduated retired moved invited promised apologized borrowed lent
    opened closed visited called calls phoned wants wanted drives drove travels travelled volunteers coaches swims runs
    arrived arrives knits paints speaks spoke
    sagte sagt fragte fragt schrieb schreibt wohnt wohnte arbeitet arbeitete meint meinte glaubt berichtet berichtete
    erzählt erzählte heiratet heiratete lebt lebte liebt spielt studiert studierte feiert feierte weint lacht antwortete
    kommt fährt reist zieht zog besucht besuchte singt tanzt lernt
    dit disait demande demandait écrit habite habitait travaille travaillait adore aime déteste pense croit répond vit
    joue étudie chante danse pleure voyage arrive rêve enseigne part
    dijo dice pregunta preguntó escribe escribió vive vivía trabaja trabajaba adora ama odia piensa cree estudia juega
    canta baila toca llora viaja llega enseña
    disse dice chiede chiese scrive scrisse vive abita abitava lavora lavorava adora ama odia pensa crede studia gioca
    suona canta balla piange viaggia arriva insegna
    diz pergunta perguntou escreve escreveu vive mora morava manda mandou trabalha trabalhava adora ama odeia pensa
    acha acredita estuda joga toca canta dança chora viaja chega ensina
    zei zegt vroeg vraagt schreef schrijft woont woonde werkt werkte denkt gelooft vertelt vertelde houdt haat speelt
    studeert zingt danst huilt reist verhuist
    powiedział powiedziała mówi zapytał zapytała pyta napisał napisała pisze mieszka mieszkał mieszkała pracuje
    pracowała pracował myśli wierzy kocha lubi nienawidzi gra studiuje śpiewa tańczy płacze podróżuje jedzie przyjechał
    przyjechała uczy
    sa säger frågade frågar skrev skriver bor bodde jobbar arbetar jobbade arbetade tror tycker berättar berättade
    älskar hatar spelar studerar sjunger dansar gråter reser flyttar flyttade
    """
)
# Of these a thing may be the subject as well: at a sentence's start they prove no name.
AMBIGUOUS_VERBS = word_set(
    """
    has had works worked plays played opened closed turns turned won runs called calls goes went gives gave got takes
    needs wants moved grew reported reports saved spoke speaks drives drove sold sells teaches hat ha arrives arrived
    likes loves ordered received kommt zieht zog fährt lebt dit arrive part joue llega toca juega arriva suona gioca
    chega joga toca manda vive vit gra jedzie werkt speelt spelar lernt spielt writes asks asked tells
    """
)
# Pronouns of a person alone: nothing else is "she" in these languages.
PERSONAL_PRONOUNS = frozenset("he she his her him han hon hans hennes henne honom".split())  # noqa: SIM905
# German: a name may follow without an article; a noun hardly.
GERMAN_LEADS = word_set(
    """
    mit von bei für an gegen ohne und oder über dass weil ob wenn wann warum wie ist war nach wo sind
    """
)
