"""What the label of a field says: the heading of a column, the key of a value. Nine languages; the lists are our own.

A label is read word by word: "customer_name", "Nom du client" and "IMIĘ I NAZWISKO" are names, "city name" is a place,
"customer id" and "file name" are nothing personal. One unknown word makes a label unknown.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, lru_cache

MAX_LENGTH = 48  # characters of a label


class Trust(IntEnum):
    """How much a label says that a person is named."""

    NAME = 0  # "name": things have names too
    ROLE = 1  # "customer": a company or a program now and then
    SURE = 2  # "surname", "customer name"


@dataclass(frozen=True)
class Label:
    """kind: a kind of entity, "" for what only people have (an age), "-" for what only things have (a price)."""

    kind: str
    trust: Trust = Trust.SURE

    @property
    def is_thing(self) -> bool:
        return self.kind == "-"


# Kinds in the order in which a word of a label decides: "email address" is EMAIL, "customer city" LOCATION.
_WORDS = {
    "-": """
        price preis prix precio prezzo preco prijs cena pris sku quantity qty stock menge stuckzahl quantite cantidad
        quantita aantal ilosc antal population einwohner habitants habitantes abitanti inwoners mieszkancy invanare
        capital currency waehrung symbol atomic element mass version license licence url type typ description paradigm
        released size weight color colour unit isbn genre calories product produkt produit producto prodotto produto
        model brand
        species language file filename path function method class module package parameter default id ids uuid count
        diameter moons area continent title framework library command host hostname port
    """,
    "EMAIL": "email emails mail courriel correo mejl epost epostadress mailadresse emailadresse",
    "PHONE": """
        phone tel telephone mobile cell cellphone telefon handy mobil mobiltelefon rufnummer telefonnummer handynummer
        mobilnummer festnetz festnetznummer portable gsm telefono movil celular cellulare telefone telemovel telefoon
        telefoonnummer mobiel komorka komorkowy telefonu fax whatsapp phonenumber phoneno mobilephone homephone
    """,
    "ACCOUNT": """
        iban account accountnumber konto kontonummer konta bankkonto kontonr compte cuenta conto conta rekening
        rekeningnummer bankrekening rachunek rachunku bankgiro
    """,
    "GOVERNMENT_ID": """
        ssn passport passportnumber passportno reisepass passnummer reisepassnummer ausweisnummer personalausweis
        personalausweisnummer sozialversicherungsnummer steueridentifikationsnummer passeport nir dni nie nif pasaporte
        fiscale passaporto cpf passaporte bsn burgerservicenummer paspoort paspoortnummer pesel paszport paszportu
        dowod dowodu personnummer samordningsnummer nino curp
    """,
    "ADDRESS": """
        address addr street adresse anschrift strasse wohnadresse rue direccion calle domicilio indirizzo endereco
        morada rua adres straat ulica adress gatuadress gata streetaddress postanschrift straatnaam
    """,
    "LOCATION": """
        city town village place location residence hometown birthplace municipality ort stadt wohnort geburtsort
        gemeinde heimatort ville commune localite lieu ciudad localidad municipio poblacion pueblo residencia citta
        comune localita residenza luogo cidade localidade naturalidade stad plaats woonplaats gemeente geboorteplaats
        miasto miejscowosc hemort bostadsort fodelseort kommun lugar
    """,
    "": """
        age alter edad eta idade leeftijd wiek alder gender sex geschlecht sexe sexo sesso geslacht plec kon birthday
        dob birthdate geburtsdatum geburtstag fechanacimiento geboortedatum geburtsjahr date datum fecha data
        nationality
        staatsangehorigkeit salary gehalt salaire salario stipendio sueldo salaris pensja lon department abteilung
        occupation beruf job profession profesion professione zip zipcode plz postcode postleitzahl cep diagnosis
        diagnose
    """,
}
_SURE = """
    firstname lastname fullname surname forename familyname givenname middlename maidenname displayname nickname vorname
    nachname familienname zuname rufname geburtsname prenom prenoms apellido apellidos cognome cognomi sobrenome
    apelido apelidos voornaam achternaam familienaam imie imiona nazwisko fornamn efternamn tilltalsnamn kundenname
    patientenname teilnehmername mitarbeitername schulername spielername klantnaam patientnaam spelersnaam
    deelnemersnaam
    kundnamn elevnamn spelarnamn deltagarnamn customername clientname patientname studentname employeename playername
    contactname username1 vollname
"""
_ROLES = """
    customer client patient student pupil employee worker player athlete author contact participant attendee member
    guest
    tenant landlord teacher instructor tutor coach manager supervisor driver passenger applicant candidate recipient
    sender buyer seller holder cardholder beneficiary owner assignee reporter reviewer witness person people colleague
    parent child mother father spouse husband wife guardian doctor physician nurse resident volunteer donor subscriber
    speaker winner runner swimmer captain insured policyholder payer payee debtor cashier consultant lawyer attorney
    plaintiff defendant borrower intern trainee friend
    kunde kundin kunden patientin patienten schuler schulerin studentin studierende studierender mitarbeiter
    mitarbeiterin angestellter angestellte arbeitnehmer arbeitnehmerin spieler spielerin sportler sportlerin athlet
    teilnehmer teilnehmerin teilnehmende mitglied mitglieder gast gaste mieter mieterin vermieter vermieterin lehrer
    lehrerin trainer trainerin bewerber bewerberin empfanger empfangerin absender ansprechpartner ansprechpartnerin
    kontakt kontaktperson kontoinhaber kontoinhaberin karteninhaber versicherter versicherungsnehmer inhaber autor
    autorin verfasser bearbeiter sachbearbeiter fahrer fahrerin zeuge zeugin besucher bewohner kaufer verkaufer
    auftraggeber antragsteller kollege kollegin arzt arztin hausarzt
    cliente clientes clientela patiente eleve etudiant etudiante employe salarie joueur joueuse athlete membre adherent
    adherente invite invitee locataire proprietaire auteur destinataire expediteur titulaire enseignant enseignante
    professeur candidat candidate beneficiaire assure temoin convive stagiaire medecin acheteur vendeur
    paciente alumno alumna estudiante empleado empleada trabajador jugador jugadora atleta deportista participante
    miembro socio socia invitado invitada inquilino inquilina propietario autor contacto destinatario remitente titular
    profesor profesora candidato candidata solicitante asistente pasajero medico comprador vendedor
    paziente alunno alunna studente studentessa dipendente giocatore giocatrice partecipante membro ospite invitato
    proprietario autore contatto mittente intestatario docente assistito
    aluno aluna estudante funcionario funcionaria jogador jogadora convidado convidada hospede contato remetente
    professor professora utente
    klant leerling werknemer werkneemster medewerker speler speelster atleet sporter deelnemer deelneemster lid huurder
    verhuurder contactpersoon ontvanger afzender kandidaat bewoner koper verkoper
    klient klientka klienta pacjent pacjentka pacjenta uczen uczennica ucznia studentka pracownik pracownika zawodnik
    zawodniczka zawodnika gracz sportowiec uczestnik uczestniczka uczestnika czlonek gosc najemca wlasciciel autorka
    odbiorca nadawca nauczyciel nauczycielka kandydat osoba
    kund elev anstalld medarbetare spelare idrottare deltagare medlem hyresgast hyresvard forfattare mottagare avsandare
    larare kopare saljare vardnadshavare
"""
_NAMES = "name nom nombre nome naam namn names noms nombres nomes namen navn"
_PARTS = """
    first last full family given middle maiden legal complete vollstandiger complet completo completa volledige
    fullstandigt proprio propio famille familia
"""
_NUMBERS = "number no nr num nummer numero numer nbr num"
_FILL = """
    of the a du de des del della dello dell dei la le les l d do da dos das van der den het und and et y e en i och s
    line home work office private privat prive principal main primary billing shipping emergency personal current
    electronico electronique elettronica eletronico bank bancaire bancario bancaria bankowego birth naissance nacimiento
    nascita nascimento geboorte urodzenia mein meine ihr your my codice social
"""
# Labels of several words whose words say something else alone.
_PHRASES = {
    "GOVERNMENT_ID": """
        national id|id number|id no|id card|social security|social security number|driver license|drivers license
        driving licence|driver s license|license number|numero de securite sociale|seguridad social|steuer id|tax id
        carta d identita|cartao de cidadao|bilhete de identidade|numer dowodu
    """,
    "PERSON": "account holder|account name|card holder|next of kin|sales rep|emergency contact|bill to|ship to"
    "|titular da conta",
    "PHONE": "contact number|contact no|numero de contacto|numer kontaktowy",
    "": "job title",
}
_CAMEL = re.compile(r"(?<=[a-zß-ÿ])(?=[A-ZÀ-Þ])")
_TOKEN = re.compile(r"[a-z]+")
_UPPER_MARKS = str.maketrans({"ł": "l", "ß": "ss", "ø": "o", "æ": "ae"})


@lru_cache(maxsize=10_000)
def parse_label(text: str) -> Label | None:
    """What a label says; None for a label that is unknown."""
    if len(text) > MAX_LENGTH:
        return None
    tokens = _tokens(text)
    if not tokens or len(tokens) > 6:
        return None
    kind = _phrases().get(" ".join(tokens))
    if kind is not None:
        return Label(kind)
    words = _words()
    groups = set()
    for token in tokens:
        group = words.get(token)
        if group is None:
            return None
        groups.add(group)
    for kind in _WORDS:
        if kind in groups:
            return None if kind == "ADDRESS" and "-" in groups else Label(kind)
    if "number" in groups:
        return None  # a customer's number
    if "sure" in groups or ("role" in groups and "name" in groups) or ("part" in groups and "name" in groups):
        return Label("PERSON", Trust.SURE)
    if "role" in groups:
        return Label("PERSON", Trust.ROLE)
    if "name" in groups or "part" in groups:
        return Label("PERSON", Trust.NAME)
    return None


def _tokens(text: str) -> list[str]:
    spaced = _CAMEL.sub(" ", text).casefold().replace("e-mail", "email").replace("e_mail", "email")
    if not spaced.isascii():
        spaced = unicodedata.normalize("NFKD", spaced.translate(_UPPER_MARKS))
        spaced = "".join(char for char in spaced if not unicodedata.combining(char))
    return _TOKEN.findall(spaced)


@cache
def _words() -> Mapping[str, str]:
    """Each word of a label with its group; a word in two groups has the first."""
    groups: dict[str, str] = {}
    blocks = [("sure", _SURE), ("role", _ROLES), ("name", _NAMES), *_WORDS.items()]
    blocks += [("part", _PARTS), ("number", _NUMBERS), ("fill", _FILL)]
    for group, block in blocks:
        for word in block.split():
            groups.setdefault(word, group)
            if group == "role":  # the heading of a list, a key of an array
                groups.setdefault(f"{word}s", group)
    return groups


@cache
def _phrases() -> Mapping[str, str]:
    return {
        phrase.strip(): kind
        for kind, block in _PHRASES.items()
        for line in block.split("\n")
        for phrase in line.split("|")
        if phrase.strip()
    }
