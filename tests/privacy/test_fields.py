"""Values of fields that are people's, in every notation; code and records of things stay. All names are made up."""

import pytest
from tests.privacy.detection import detect, detect_values

from eyas.privacy.structured_text import find_structured


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"full_name": "Tevita Ngata", "age": 31}', ["Tevita Ngata"]),
        ('{"user":{"name":"Tevita Ngata","email":"t@zorvek.io"}}', ["Tevita Ngata"]),
        ("{'lastName': 'Ngata', 'firstName': 'Tevita'}", ["Ngata", "Tevita"]),
        ('payload={\\"first_name\\": \\"Tevita\\", \\"last_name\\": \\"Ngata\\"}', ["Tevita", "Ngata"]),
        ('"participants": ["Tevita Ngata", "Wiebra Okwuosa"]', ["Tevita Ngata", "Wiebra Okwuosa"]),
        ('students = ["Tevita", "Wiebra"]', ["Tevita", "Wiebra"]),
        ("customer:\n  name: Tevita Ngata\n  email: t@zorvek.io\n", ["Tevita Ngata"]),
        ("- name: Tevita Ngata\n  phone: 0171 5550199\n", ["Tevita Ngata"]),
        ("[patient]\nsurname = Ngata\nfirst_name=Tevita\n", ["Ngata", "Tevita"]),
        ('surname = "Ngata"\n', ["Ngata"]),
        ("<customer><firstName>Tevita</firstName><lastName>Ngata</lastName></customer>", ["Tevita", "Ngata"]),
        ('<Patient id="3">Tevita Ngata</Patient>', ["Tevita Ngata"]),
        ("<ns:surname>Ngata</ns:surname>", ["Ngata"]),
        ('ts=12:03 level=info customer_name="Tevita Ngata" amount=31', ["Tevita Ngata"]),
        ("level=info customer=Tevita.Ngata amount=31", ["Tevita.Ngata"]),
        ("employee_name=Tevita Ngata;dept=IT", ["Tevita Ngata"]),
        ("GET /?first_name=Tevita&last_name=Ngata&page=1", ["Tevita", "Ngata"]),
        ("Surname:\nNgata\nFirst name:\nTevita\n", ["Ngata", "Tevita"]),
        ("FIRST NAME: TEVITA\nLAST NAME: NGATA", ["TEVITA", "NGATA"]),
        ("First name: Tevita    Last name: Ngata", ["Tevita", "Ngata"]),
        ("**Name:** Tevita Ngata\n**Age:** 31", ["Tevita Ngata"]),
        ("Name: Ngata, Tevita\nDOB: 1970-01-02", ["Ngata, Tevita"]),
        ("Attendees: Tevita Ngata, Wiebra Okwuosa", ["Tevita Ngata", "Wiebra Okwuosa"]),
        ("Tenant(s): Tevita Ngata and Wiebra Okwuosa", ["Tevita Ngata", "Wiebra Okwuosa"]),
        ("Witness 1: Tevita Ngata\nWitness 2: Wiebra Okwuosa", ["Tevita Ngata", "Wiebra Okwuosa"]),
        ("Name of the tenant: Tevita Ngata\nMonthly rent: 300", ["Tevita Ngata"]),
        ("Emergency contact: Wiebra Okwuosa (mother)", ["Wiebra Okwuosa"]),
        ("first_name: null\nlast_name: Ngata", ["Ngata"]),
    ],
)
def test_every_notation(text, names):
    assert detect_values("PERSON", text) == names


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Kunde: Tevita Ngata", "de"),
        ("Name des Patienten: Tevita Ngata", "de"),
        ("Nom du client : Tevita Ngata", "fr"),
        ("Nombre y apellidos: Tevita Ngata", "es"),
        ("Cognome e nome: Tevita Ngata", "it"),
        ("Nome do cliente: Tevita Ngata", "pt"),
        ("Naam van de klant: Tevita Ngata", "nl"),
        ("Imię i nazwisko: Tevita Ngata", "pl"),
        ("Kundens namn: Tevita Ngata", "sv"),
    ],
)
def test_keys_of_nine_languages(text, language):
    assert detect(text, language) == [("PERSON", "Tevita Ngata")]


def test_what_else_a_form_asks_for():
    text = (
        "Full name:\n  Tevita Ngata\nPassport number:\n  X1234567\nPhone: 0171 5550199\nAddress: 12 Zorvek Street\n"
        "Account number: 48 2210 3345\n"
    )
    assert [kind for kind, _ in detect(text)] == ["PERSON", "GOVERNMENT_ID", "PHONE", "ADDRESS", "ACCOUNT"]


@pytest.mark.parametrize("around", ['"age": 31', '"email": "t@zorvek.io"', '"job_title": "cook"'])
def test_a_bare_name_is_a_persons_beside_other_fields_of_people(around):
    assert "Quindar" in detect_values("PERSON", f'{{"name": "Quindar", {around}}}')


@pytest.mark.parametrize("around", ['"price": 20', '"sku": "A-1"', '"version": "1.0"', '"weight": 3, "color": "red"'])
def test_a_bare_name_is_a_things_beside_fields_of_things(around):
    assert detect(f'{{"name": "Quindar", {around}}}') == []


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE customers (\n  customer_name VARCHAR(50) NOT NULL,\n  phone VARCHAR(20),\n  city TEXT\n);",
        '{"type": "object", "properties": {"firstName": {"type": "string"}}, "required": ["firstName"]}',
        "interface User { name: string; email: string; owner: Person; }",
        "struct Person { name: String, age: u32 }",
        "type Query { user(name: String): User }",
        'items = [{"name": "Widget", "price": 20}, {"name": "Gadget", "price": 30}]',
        '{"name": "my-app", "version": "1.0.0", "author": ""}',
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: nginx",
        'customer = Customer()\nowner = get_owner(id)\nname = input("Name: ")',
        'Person person = new Person();\nString name = "Test";',
        "SELECT name, city FROM users WHERE surname = ?",
        '<label>Name:</label><input name="surname" placeholder="Surname">',
        "<name>Widget</name><price>20</price>",
        "driver: Postgres\nclient: Redis",
    ],
)
def test_code_stays(text):
    assert detect(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "@dataclass\nclass Customer:\n    name: str\n    email: str\n    owner: Optional[User] = None",
        "class Item(BaseModel):\n    first_name: str = Field(...)\n    last_name: str\n    customer: Customer",
        "def greet(customer: Customer, name: str) -> None:\n    print(name)",
        'first_name = row["first_name"]\nlast_name = data.last_name',
        "first_name: str\nlast_name: str | None",
        "sort:\n  last_name: asc\n  first_name: desc",
        "full_name = first_name + last_name",
    ],
)
def test_types_are_no_values(text):
    assert list(find_structured(text, "en")) == []


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("file name: Quarterly Report\nclass name: Zorvek", "en"),
        ("username: admin\nhost name: Zorvek", "en"),
        ("Product name: Zorvek Pro\nCompany name: Zorvek Systems", "en"),
        ("Team name: Blue Dragons", "en"),
        ("Name: Mercury\nDiameter: 4879\nMoons: 0", "en"),
        ("Contact: Support\nOwner: Backend Team", "en"),
        ("Player 1: Rock\nPlayer 2: Paper", "en"),
        ("Guest 1: Vegan\nGuest 2: no nuts", "en"),
        ("Student: How do I solve this?\nTeacher: Use the chain rule.", "en"),
        ("Customer: AT&T\nOwner: H&M", "en"),
        ("Email: required\nPhone: optional\nName: required", "en"),
        ("Name: [Your Name]\nAddress: [Your Address]\nPhone: ____", "en"),
        ("Gender: Male\nRace: Elf\nClass: Wizard", "en"),
        ("Klasse: Auto\nName: Golf\nPreis: 20000", "de"),
        ("Nom du fichier : Rapport Final", "fr"),
        ("Nazwa pliku: Raport", "pl"),
    ],
)
def test_fields_of_things_stay(text, language):
    assert detect(text, language) == []
