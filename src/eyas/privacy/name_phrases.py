"""What stands beside a name in nine languages: "my name is", "Herr", "Patient:", "Best regards,".

A phrase is written as words; the last word of a phrase finds it in a text. The lists are our own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache


class Cue(Enum):
    """What a phrase says about the words behind it."""

    INTRO = "the name follows, in lower case too"
    HINT = "a name may follow: capitalised, or a first name that is no word"
    TITLE = "a capitalised name follows"
    LABEL = "behind a colon or an equals sign stands a name"
    RELATION = "someone follows: a friend, a boss"
    GREETING = "a name follows, then a comma, an exclamation mark or the line's end"
    CLOSING = "a name follows on a line of its own, or behind a comma at the end"


_INTRO = """
    my name is|my names|my name's|my full name is|hey its|hey it's|hi its|hi it's|yo its|yo it's|hey im|hey i'm|hi im
    hi i'm|yo im|hey this is|hi this is|hello this is|hello i'm|hello i am|hi i am|you can call me|please call me
    i am called
    people call me|everyone calls me
    ich heiße|ich heisse|mein name ist|meine name ist|man nennt mich|nennt mich
    je m'appelle|je me nomme|mon nom est|mon prénom est|moi c'est|on m'appelle|il s'appelle|elle s'appelle
    me llamo|mi nombre es|me dicen|me llaman|se llama|mi nombre completo es
    mi chiamo|il mio nome è|mi chiamano|si chiama|io mi chiamo
    meu nome é|o meu nome é|chamo me|chamo-me|me chamo|eu me chamo|se chama|chama-se
    mijn naam is|ik heet|noem me|heet ik|hij heet|zij heet
    nazywam się|mam na imię|moje imię to|na imię mi|mów mi|nazywa się|imieniem
    jag heter|mitt namn är|kalla mig|heter jag|hon heter|han heter|som heter
"""
_PERHAPS = """
    name is|named|the name is|goes by the name of|goes by|by the name of|namens|heißt|nommé|nommée|llamado|llamada
    di nome
    chamado|chamada|genaamd|o imieniu|vid namn|i am|i'm|im|this is|it's|its|it is|here is|here's|call me|signed
    signed by|written by|created by|reported by
    prepared by|approved by|reviewed by|assigned to|owned by|submitted by|requested by|posted by|sent by|sent from
    spoke to|spoke with|speak to|speak with|talk to|talked to|talk with|talked with|met with|meet with|ask for|reach
    contact|tell|told|ask|asked|text|texted|email|emailed|ping|pinged|thanks to|met|with|and|hey its|hey it's|hi its
    ich bin|hier ist|hier spricht|das ist|bin|unterzeichnet|gezeichnet|erstellt von|geschrieben von|verfasst von|frag
    je suis|c'est|ici|signé|écrit par|rédigé par|avec|demande à
    soy|aquí|habla|firmado|escrito por|firmado por|con|pregunta a
    sono|qui|firmato|scritto da|parla|chiedi a
    sou|sou o|sou a|eu sou|aqui é|aqui é o|aqui é a|assinado|escrito por|fala|com o|com a
    ik ben|dit is|je spreekt met|u spreekt met|met|getekend|geschreven door|vraag
    jestem|tu|mówi|podpisano|podpisał|podpisała|napisane przez|z tej strony
    jag är|det här är|det är|här är|undertecknat|skriven av|fråga|med
"""
_TITLE = """
    mr|mrs|ms|miss|mx|mister|dr|prof|professor|doctor|sir|madam|lady|lord|rev|reverend|capt|captain|sgt|sergeant|lt
    officer|detective|judge|attorney|nurse|coach|auntie|aunt|uncle|grandma|grandpa|hon|esq|sister|brother|father
    herr|herrn|frau|hr|fr|frl|doktor|familie|rechtsanwalt|rechtsanwältin|onkel|tante|oma|opa|schwester|pfarrer
    monsieur|madame|mademoiselle|mme|mlle|m|maître|docteur|professeur|oncle
    sr|sra|srta|señor|señora|señorita|don|doña|doctora|dra|profesor|profesora|tío|tía
    sig|signor|signora|signorina|signore|sigra|dott|dottor|dottoressa|dottssa|avv|avvocato|ing|geom|zio|zia
    senhor|senhora|dona|doutor|doutora|professora|seu|tio|tia|eng
    dhr|mevr|mw|meneer|mevrouw|mijnheer|dokter|heer|oom
    pan|pani|panie|pana|panu|panią|panem|doktora|wujek|ciocia|inż|mgr
    fru|fröken|farbror|moster|doktorn
"""
_LABEL = """
    name|full name|first name|last name|surname|firstname|lastname|fullname|given name|family name|middle name
    maiden name
    customer|customer name|client|client name|patient|patient name|employee|contact|contact person|attn|attention
    bill to
    billed to|ship to|sold to|deliver to|from|to|cc|bcc|author|signed|signature|prepared by|physician|doctor|provider
    tenant|landlord|buyer|seller|account holder|cardholder|card holder|holder|name on card|recipient|sender|applicant
    candidate|guest|passenger|witness|insured|beneficiary|guardian|next of kin|emergency contact|mother|father|spouse
    husband|wife|son|daughter|user|username|display name|owner|assignee|reporter|reviewer|reviewed by|approved by
    committer
    maintainer|student|teacher|parent|manager|supervisor|referring physician|attending|nurse|lawyer|attorney|plaintiff
    defendant|agent|member|subscriber|caller|requester|submitted by|created by|issued to|payable to|payee|payer
    attendees
    participant|participants|speaker|interviewer|host|driver|consultant|technician|displayname|created_by|updated_by
    dear
    kunde|kundin|kundenname|patientin|patientenname|vorname|nachname|familienname|ansprechpartner|ansprechpartnerin
    empfänger|absender|rechnung an|lieferung an|von|an|unterschrift|kontoinhaber|karteninhaber|mieter|vermieter|käufer
    verkäufer|arzt|ärztin|hausarzt|behandelnder arzt|versicherter|antragsteller|mitarbeiter|mitarbeiterin|auftraggeber
    bewerber|zeuge|sachbearbeiter|bearbeiter|kontakt|geschäftsführer|notfallkontakt|teilnehmer|verfasser|autor
    nom|prénom|nom complet|nom et prénom|destinataire|expéditeur|facturé à|client|cliente|patiente|titulaire|locataire
    propriétaire|acheteur|vendeur|médecin|médecin traitant|assuré|salarié|de|à|contact|auteur|signataire|bénéficiaire
    nombre|apellido|apellidos|nombre completo|nombre y apellidos|cliente|paciente|destinatario|remitente|facturar a
    titular|inquilino|propietario|comprador|vendedor|médico|asegurado|empleado|para|contacto|firma|autor|solicitante
    nome|cognome|nome e cognome|nome completo|paziente|destinatario|mittente|intestatario|fatturare a|inquilino
    proprietario|acquirente|venditore|medico|assicurato|dipendente|contatto|referente|autore|beneficiario|spett
    apelido|sobrenome|utente|destinatário|remetente|faturar a|inquilino|proprietário|comprador|vendedor|segurado
    contato|contacto|responsável|assinatura|beneficiário|solicitante|funcionário
    naam|voornaam|achternaam|volledige naam|klant|klantnaam|patiënt|ontvanger|afzender|factuur aan|rekeninghouder
    huurder
    verhuurder|koper|verkoper|huisarts|arts|verzekerde|werknemer|aan|van|contactpersoon|ondertekend|auteur|t.a.v
    imię|nazwisko|imię i nazwisko|klient|klientka|pacjent|pacjentka|odbiorca|nadawca|nabywca|sprzedawca|lekarz|najemca
    właściciel|posiadacz|ubezpieczony|pracownik|kontakt|osoba kontaktowa|podpis|od|do|autor|wystawca|zleceniodawca
    namn|förnamn|efternamn|fullständigt namn|kund|kundnamn|patient|mottagare|avsändare|faktura till|kontoinnehavare
    hyresgäst|hyresvärd|köpare|säljare|läkare|försäkrad|anställd|från|till|kontaktperson|underskrift|författare
"""
_PERSON = """
    my friend|my best friend|my boss|my wife|my husband|my brother|my sister|my mother|my mom|my mum|my father|my dad
    my son
    my daughter|my colleague|my coworker|my co-worker|my manager|my neighbor|my neighbour|my doctor|my landlord
    my cousin
    my teacher|my aunt|my uncle|my roommate|my girlfriend|my boyfriend|my fiancé|my fiancée|my partner|my ex
    my therapist
    my nephew|my niece|my grandmother|my grandfather|my lawyer|my client|my patient|my flatmate|my mate|our friend
    our boss
    our neighbor|our neighbour|our colleague|our manager|our son|our daughter|friend|colleague|coworker|classmate|buddy
    his wife|her husband|his brother|her brother|his sister|her sister|his friend|her friend|his son|her son
    his daughter
    her daughter|her boss|his boss|their son|their daughter|bestie|homie|bro|the patient|the client|the tenant
    the customer
    mein freund|meine freundin|mein chef|meine chefin|mein mann|meine frau|mein bruder|meine schwester|meine mutter
    mein vater|mein sohn|meine tochter|mein kollege|meine kollegin|mein nachbar|meine nachbarin|meiner frau|meinem mann
    meinem freund|meiner freundin|meinem chef|meiner chefin|meinem bruder|meiner schwester|meinem sohn|meiner tochter
    meinem kollegen|meiner kollegin|meinen freund|meinen chef|meinen kollegen|meinen bruder|unser kollege
    unsere kollegin
    mon ami|mon amie|ma femme|mon mari|mon frère|ma sœur|ma soeur|ma mère|mon père|mon fils|ma fille|mon collègue
    ma collègue|mon patron|mon chef|mon voisin|ma voisine|mon copain|ma copine|mon cousin|ma cousine|mon pote
    mi amigo|mi amiga|mi esposa|mi mujer|mi marido|mi esposo|mi hermano|mi hermana|mi madre|mi padre|mi hijo|mi hija
    mi colega|mi jefe|mi jefa|mi vecino|mi vecina|mi novio|mi novia|mi primo|mi prima|mi compañero|mi compañera
    mio amico|mia amica|mia moglie|mio marito|mio fratello|mia sorella|mia madre|mio padre|mio figlio|mia figlia
    mio collega|mia collega|mio capo|mio vicino|mia vicina|mio ragazzo|mia ragazza|mio cugino|mia cugina
    meu amigo|minha amiga|minha esposa|minha mulher|meu marido|meu irmão|minha irmã|minha mãe|meu pai|meu filho
    minha filha|meu colega|minha colega|meu chefe|minha chefe|meu vizinho|minha vizinha|meu namorado|minha namorada
    mijn vriend|mijn vriendin|mijn vrouw|mijn man|mijn broer|mijn zus|mijn moeder|mijn vader|mijn zoon|mijn dochter
    mijn collega|mijn baas|mijn buurman|mijn buurvrouw|mijn neef|mijn nicht
    mój przyjaciel|moja przyjaciółka|moja żona|mój mąż|mój brat|moja siostra|moja mama|mój tata|mój syn|moja córka
    mój kolega|moja koleżanka|mój szef|moja szefowa|mój sąsiad|moja sąsiadka|mojego kolegi|moim kolegą|mojej żony
    min vän|min kompis|min fru|min man|min bror|min syster|min mamma|min pappa|min son|min dotter|min kollega|min chef
    min granne|min sambo|min kusin
"""
_GREET = """
    dear|hi|hello|hey|hiya|yo|thanks|thank you|thx|cheers|welcome|good morning|good afternoon|good evening|congrats|sup
    liebe|lieber|hallo|hi|guten tag|guten morgen|servus|moin|danke
    cher|chère|bonjour|salut|bonsoir|coucou|merci
    hola|estimado|estimada|querido|querida|buenos días|buenas tardes|gracias
    ciao|caro|cara|gentile|buongiorno|buonasera|salve|grazie|egregio
    olá|oi|caro|cara|prezado|prezada|querido|querida|bom dia|boa tarde|obrigado|obrigada
    beste|hoi|hallo|geachte|lieve|dag|goedemorgen|goedemiddag|bedankt
    cześć|hej|drogi|droga|witaj|szanowny|szanowna|dzień dobry|dzięki|kochana|kochany
    hej|hejsan|kära|käre|bästa|god morgon|tack|tjena
"""
_CLOSE = """
    regards|best regards|kind regards|warm regards|sincerely|yours sincerely|yours faithfully|yours truly|best
    best wishes
    cheers|thanks|thank you|many thanks|cordially|respectfully|love|xoxo|yours|please|plz|all the best|take care|thx|ty
    grüße|grüßen|gruß|grüsse|grüssen|mit freundlichen grüßen|viele grüße|liebe grüße|bitte|hochachtungsvoll|mfg|lg|vg
    danke
    cordialement|bien à vous|amicalement|salutations|sentiments distingués|bises|merci|distinguées|sincèrement
    saludos|un saludo|atentamente|cordialmente|un abrazo|abrazos|gracias|besos
    saluti|cordiali saluti|distinti saluti|un saluto|cordialmente|un abbraccio|grazie|a presto
    atenciosamente|cumprimentos|com os melhores cumprimentos|abraços|um abraço|abraço|obrigado|obrigada|beijos
    groet|groeten|groetjes|hoogachtend|vriendelijke groet|vriendelijke groeten|liefs|bedankt
    pozdrawiam|z poważaniem|pozdrowienia|serdecznie|dziękuję|poważaniem|uściski
    hälsningar|hälsning|vänliga hälsningar|vänligen|mvh|kram|tack|högaktningsfullt
"""
# Verbs whose subject is a person; the word before them is a name where it is no other word.
PERSON_VERBS = frozenset(
    """
    owns owned drinks drank eats drives adopted watched walked cooked rented enjoys played collected bakes decides
    planned won saved borrowed met meets said says told asked asks called calls wrote writes texted emailed replied
    replies answered lives lived works worked
    bought buys paid pays signed ordered owes owed wants wanted needs loves loved likes liked phoned complained reported
    thinks thought prescribed requested married died agreed refused earns earned decided spent sold sells went goes
    got gave received baked ate eats drove visited has had will'll moved grew promised invited sent sends forgot
    found took made put left came knew kept lost ran brought began
    sagte sagt fragte fragt schrieb schreibt wohnt arbeitet kaufte bat meinte meint rief hat bestellte unterschrieb
    dit disait demande écrit habite travaille a-dit répond veut achète
    dijo dice preguntó escribió vive trabaja compró quiere pidió llamó
    disse dice chiese scrive vive lavora ha vuole comprò chiede abita
    diz perguntou escreveu mora trabalha comprou quer pediu ligou
    zei zegt vroeg schreef woont werkt kocht wil belde
    powiedział powiedziała mówi zapytał zapytała napisał napisała mieszka pracuje kupił kupiła chce dzwonił dzwoniła
    sa säger frågade skrev bor jobbar arbetar köpte vill ringde
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Phrase:
    """The words of a phrase but the last, in lower case."""

    before: tuple[str, ...]
    cue: Cue


@cache
def index_phrases() -> Mapping[str, tuple[Phrase, ...]]:
    """The phrases by their last word, the longest first."""
    found: dict[str, list[Phrase]] = {}
    for cue, block in (
        (Cue.INTRO, _INTRO),
        (Cue.HINT, _PERHAPS),
        (Cue.TITLE, _TITLE),
        (Cue.LABEL, _LABEL),
        (Cue.RELATION, _PERSON),
        (Cue.GREETING, _GREET),
        (Cue.CLOSING, _CLOSE),
    ):
        for text in {part.strip() for line in block.split("\n") for part in line.split("|") if part.strip()}:
            *before, last = text.replace("-", " ").replace(".", " ").replace("_", " ").split()
            found.setdefault(last, []).append(Phrase(tuple(before), cue))
    order = list(Cue)
    return {
        last: tuple(sorted(group, key=lambda phrase: (-len(phrase.before), order.index(phrase.cue), phrase.before)))
        for last, group in found.items()
    }
