"""Hindi: names of private persons are found before postpositions, names of public knowledge stay."""

import pytest
from tests.privacy.detection import detect, detect_values, find_private_names, make_filter

from eyas.privacy.filter import CleanedRecord

PAIRS = [
    ("सुनयना मेश्राम", "मेरी पत्नी {} अस्पताल में भर्ती है, छुट्टी का आवेदन लिखो।", "चित्रकार {} की पेंटिंग पर निबंध लिखें।"),
    ("गुरविंदर भुल्लर", "मकान मालिक {} डिपॉजिट वापस नहीं कर रहा, नोटिस लिखिए।", "{} के उपन्यास का सारांश बताइए।"),
    ("अब्दुल कलाम", "हमारे पड़ोसी {} रोज़ रात को शोर करते हैं, क्या करूँ?", "{} के जीवन पर भाषण तैयार करें।"),
    ("लालथनमावी सैलो", "मेरी सहेली {} का तलाक हो रहा है, उसे क्या संदेश भेजूँ?", "गायिका {} के मशहूर गीत कौन से हैं?"),
    ("एम के नांबियार", "बॉस {} ने मेरा वेतन काट लिया।", "इतिहासकार {} के विचार क्या थे?"),
    ("शबनम खातून", "मरीज {} को मधुमेह है, कल ऑपरेशन होगा। रिपोर्ट लिखो।", "अभिनेत्री {} की फ़िल्मों की सूची बताओ।"),
]
PHRASES = [
    ("नमस्ते, मेरा नाम टेन्ज़िन है और मुझे रिफंड चाहिए।", "टेन्ज़िन"),
    ("नाम: झबरू उइके\nमोबाइल: 9876543210", "झबरू उइके"),
    ("प्रिय प्रकाश, जन्मदिन की बधाई! मेरे घर ज़रूर आना।", "प्रकाश"),
    ("मेरी दीदी ज्योति की शादी है, निमंत्रण लिखो।", "ज्योति"),
    ("शकुंतला जी ने मेरा किराया बढ़ा दिया।", "शकुंतला"),
]
ORDINARY = [
    "मुझे आशा है कि आप ठीक होंगे। ज्योति शब्द का अर्थ बताइए।",
    "राजू के पास 5 सेब हैं और सीता के पास 3, कुल कितने सेब हैं?",
    "गणेश पूजा की विधि बताओ।",
    "बाल विकास पर निबंध लिखें।",
    "प्रकाश की गति कितनी होती है?",
    "वह घर गया और फिर वापस आया, इसका अंग्रेज़ी अनुवाद करो।",
    "मेरे लैपटॉप का स्विच ऑफ नहीं होता, क्या करूँ?",
    "कोटा में कोचिंग कौन सी अच्छी है?",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "hi")
    assert not find_private_names(public.format(name), "hi")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "hi")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "hi")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("रमेश को बताओ", ["रमेश"]),
        ("फ़ैयाज़ क़ुरैशी से मिला", ["फ़ैयाज़ क़ुरैशी"]),
        ("रोहताश बैरवा की फ़ीस", ["रोहताश बैरवा"]),
        ("एम एस नायर का फ़ोन आया", ["एम एस नायर"]),
        ("सुनन्दा वर्मा ने कहा", ["सुनन्दा वर्मा"]),
        ("रमेश के पास किताब है", ["रमेश"]),
        ("हमारी कंपनी ने फ़िरोज़ा सिद्दीक़ी को ऑफर लेटर दिया", ["फ़िरोज़ा सिद्दीक़ी"]),
        ("विकास की दर", []),
    ],
)
def test_where_a_name_begins_and_ends(text, names):
    assert detect_values("PERSON", text, "hi") == names


def test_towns_of_people_are_found():
    assert ("LOCATION", "रतलाम") in detect("मैं रतलाम में रहता हूँ", "hi")
    assert not detect("रतलाम में घूमने की जगहें बताओ", "hi")
    assert not detect_values("LOCATION", "रमेश दिल्ली विश्वविद्यालय में पढ़ता है", "hi")


def test_a_surrogate_keeps_the_gender_and_other_mentions_get_it_too():
    (record,) = make_filter().clean([(("मेरी बहन सुनीता वर्मा बीमार है। सुनीता को दवा देनी है।",), "hi")])
    assert isinstance(record, CleanedRecord)
    first, last = record.texts[0].split()[2:4]
    assert record.texts[0] == f"मेरी बहन {first} {last} बीमार है। {first} को दवा देनी है।"
    assert first != "सुनीता"
    assert last != "वर्मा"
    records = [make_filter(key=bytes([k] * 32)).clean([(("मेरी बेटी सुनीता पास हुई",), "hi")])[0] for k in range(8)]
    texts = [record.texts[0] for record in records if isinstance(record, CleanedRecord)]
    assert len(set(texts)) > 4
    assert not {text.split()[2] for text in texts} & {"राकेश", "मुकेश", "दिनेश", "सुनील"}


def test_a_last_name_alone_is_a_name():
    assert detect_values("PERSON", "लोग मुझे डिकोस्टा समझ रहे हैं", "hi") == ["डिकोस्टा"]
