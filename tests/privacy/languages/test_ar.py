"""Arabic: names of private persons are found behind prefixes and with particles, names of public knowledge stay."""

import pytest
from tests.privacy.detection import detect, detect_values, find_private_names, make_filter

from eyas.privacy.filter import CleanedRecord

PAIRS = [
    ("لجين الورفلي", "زوجتي {} في المستشفى منذ أسبوع، اكتب لي طلب إجازة.", "ما أشهر لوحات الفنانة {}؟"),
    ("صالح بن مبارك الحبسي", "المؤجر {} يرفض رد مبلغ التأمين. كيف أكتب له إنذارا؟", "لخص رواية {} في خمس نقاط."),
    ("بدر شاكر السياب", "جارنا {} يزعجنا بالضجيج كل ليلة، أريد رسالة لطيفة.", "قارن بين شعر {} وشعر نازك الملائكة."),
    ("عبد الصمد الدكالي", "مديري {} خصم من راتبي ثلاثة أيام.", "من هو المؤرخ {} وما أهم كتبه؟"),
    ("أم كلثوم", "صديقتي {} تطلقت وتطلب حضانة الأولاد.", "ما قصة أغنية {} الأخيرة؟"),
    ("هيفاء أبو ليلى", "المريضة {}، سكري وضغط، راجعت العيادة أمس. اكتب التقرير.", "ما دور {} في السينما المصرية؟"),
]
PHRASES = [
    ("مرحبا، اسمي تغريد وأريد إلغاء اشتراكي.", "تغريد"),
    ("الاسم: قصي العجارمة\nالهاتف: 0551234567", "قصي العجارمة"),
    ("السلام عليكم دكتورة الحوسنية، أعتذر عن غيابي.", "الحوسنية"),
    ("عزيزتي وسن، شكرا على هديتك في عيد ميلادي.", "وسن"),
    ("بنت خالتي أمل تزوجت أمس وأريد كتابة تهنئة.", "أمل"),
]
ORDINARY = [
    "صباح الخير، كيف أكتب رسالة تغطية جيدة؟",
    "ما معنى كلمة أمل في هذه الجملة؟",
    "مع كريم ست تفاحات ومع هدى أربع. كم تفاحة معهما؟",
    "إن شاء الله سأسافر غدا، ما أفضل وقت لزيارة مراكش؟",
    "اكتب قصة قصيرة عن فارس وحصانه الجميل.",
    "ما الفرق بين العدل والإحسان؟",
    "من فتح القسطنطينية: محمد الفاتح أم غيره؟",
    "عائلتي تحتاج إلى حياة كريمة، ما نصيحتك؟",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "ar")
    assert not find_private_names(public.format(name), "ar")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "ar")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "ar")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("سلمت الملف لأحمد أمس", ["أحمد"]),
        ("اتصلت بفارس الهمامي", ["فارس الهمامي"]),
        ("وصل عبد الرحمن متأخرا", ["عبد الرحمن"]),
        ("كتب محمّد العيّاشي", ["محمّد العيّاشي"]),
        ("قال لي أبو فراس ذلك لأمجد", ["أبو فراس", "أمجد"]),
        ("وضعته على الطاولة", []),
    ],
)
def test_where_a_name_begins_and_ends(text, names):
    assert detect_values("PERSON", text, "ar") == names


def test_towns_are_found_behind_prefixes():
    assert ("LOCATION", "جدة") in detect("أسكن بجدة منذ سنتين", "ar")
    assert not detect("ما أجمل الأماكن في جدة؟", "ar")
    assert not detect_values("LOCATION", "صديقتي سمر الحربي تدرس في جامعة القاهرة", "ar")


def test_a_surrogate_keeps_the_gender_and_other_mentions_get_it_too():
    (record,) = make_filter().clean([(("أختي رنيم الشمري مريضة. قل لرنيم إنني آسف.",), "ar")])
    assert isinstance(record, CleanedRecord)
    first, last = record.texts[0].split()[1:3]
    assert record.texts[0] == f"أختي {first} {last} مريضة. قل ل{first} إنني آسف."
    assert first != "رنيم"
    assert last != "الشمري"
    records = [make_filter(key=bytes([k] * 32)).clean([(("ابنتي رنيم نجحت",), "ar")])[0] for k in range(8)]
    texts = [record.texts[0] for record in records if isinstance(record, CleanedRecord)]
    assert len(set(texts)) > 4
    assert not {text.split()[1] for text in texts} & {"أحمد", "محمد", "خالد", "سامي"}


def test_titles_count_behind_labels_and_last_names_of_origin_belong_to_the_name():
    assert detect_values("PERSON", "كلمت المدير الأستاذ نايف أمس", "ar") == ["نايف"]
    assert detect_values("PERSON", "الاسم: شهد بنت فواز القرشي", "ar") == ["شهد بنت فواز القرشي"]
