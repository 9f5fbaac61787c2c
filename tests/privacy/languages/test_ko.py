"""Korean: names of private persons are found with particles behind them, names of public knowledge stay."""

import pytest
from tests.privacy.detection import detect, detect_values, find_private_names, make_filter

from eyas.privacy.filter import CleanedRecord

PAIRS = [
    ("최다온", "제 아내 {}가 입원해서 연차를 써야 합니다. 문자 좀 써 주세요.", "화가 {}의 대표작 세 점을 소개해 줘."),
    (
        "남궁도현",
        "집주인 {} 씨가 보증금을 안 돌려줘요. 내용증명 어떻게 쓰나요?",
        "{}의 소설에 나타난 주제를 분석해 줘.",
    ),
    ("이순신", "옆집 {} 씨 때문에 층간소음이 심해서 우리 아이가 잠을 못 자요.", "{}이 이긴 해전을 연표로 정리해 줘."),
    ("배은솔", "신입 {}한테 빌려준 돈 50만 원을 어떻게 돌려받지?", "주인공 {}의 이야기를 동화로 써 줘."),
    (
        "김연아",
        "환자 {}, 혈압이 높고 어제 수술을 받았습니다. 진료기록으로 정리해 주세요.",
        "{}가 올림픽에서 금메달을 딴 해는?",
    ),
    ("도경수", "담임 선생님께: {} 엄마예요. 아이가 독감이라 결석합니다.", "배우 {}가 출연한 영화 추천해 줘."),
    ("선우리안", "남자친구 {}이랑 헤어졌는데 카톡을 차단당했어.", "{} 팬픽 제목 다섯 개 지어 줘."),
    (
        "황보금옥",
        "피고 {}, 교통사고 합의금을 거부하고 있습니다. 소장을 다듬어 주세요.",
        "{}의 사상이 문학에 준 영향은?",
    ),
]
PHRASES = [
    ("안녕하세요, 저는 탁이솔입니다. 환불 부탁드려요.", "탁이솔"),
    ("성명: 제갈봉구\n생년월일: 1970년\n증상: 두통", "제갈봉구"),
    ("탁 과장님께, 지난주 회의록을 보내 드립니다. 연차도 신청합니다.", "탁"),
    ("남편 승필이는 반찬을 좋아만 하고 도와주지 않아요.", "승필"),
    ("아들이 3학년인데 마 선생님이 왕따 얘기를 무시해요.", "마"),
    ("윗집 봉씨네 애들이 밤 11시까지 뛰어요. 쪽지 문구 부탁해요.", "봉"),
    ("예금주는 편상철입니다. 이 계좌로 입금해 주세요.", "편상철"),
]
ORDINARY = [
    "세종대왕이 한글을 만든 이유를 설명해 줘.",
    "철수는 사과를 5개, 영희는 3개 가지고 있다. 모두 몇 개인가?",
    "김치찌개를 맛있게 끓이는 방법 알려 줘.",
    "이번 주말에 강릉 여행 코스 추천해 줘.",
    "한강 작가의 소설을 요약해 줘.",
    "고양이가 밥을 안 먹을 때 이유가 뭘까?",
    "문장만 자연스럽게 고쳐 줘.",
    "윤동주와 이육사의 시를 비교해 줘.",
    "아들 숙제를 어떻게 도와줘야 하나요?",
    "한 선생님이 학생 서른 명을 가르칩니다.",
    "날씨가 좋네요. 시 한 편 써줘.",
    "정리해 준 내용을 표로 바꿔 줘.",
    "소설을 이어 써 줘. “늦었네.” 차하진이 말했다.",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "ko")
    assert not find_private_names(public.format(name), "ko")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "ko")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "ko")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("고민지가 왔다", ["고민지"]),
        ("고민이 많다", []),
        ("이사를 했다", []),
        ("평양에 갔다", []),
        ("박준호에게서 들었다", ["박준호"]),
        ("노을빛나 씨가 왔다", ["노을빛나"]),
    ],
)
def test_where_a_name_begins_and_ends(text, names):
    assert detect_values("PERSON", text, "ko") == names


def test_a_surrogate_has_the_shape_of_the_name_and_other_mentions_get_it_too():
    (record,) = make_filter().clean([(("제 상사 박준호가 화를 냈어요. 준호 씨한테 사과하고 싶어요.",), "ko")])
    assert isinstance(record, CleanedRecord)
    text = record.texts[0]
    surname, given = text[5], text[6:8]
    assert text == f"제 상사 {surname}{given}가 화를 냈어요. {given} 씨한테 사과하고 싶어요."
    assert given != "준호"


def test_titles_and_towns_right_beside_a_word():
    found = detect("예담씨한테 연락했고 천요양사님도 왔어요. 날씨가 좋네요. 010-1234-5678", "ko")
    assert ("PERSON", "예담") in found
    assert ("PERSON", "천") in found
    assert len(found) == 3
    assert "동해" in detect_values("LOCATION", "제 동생은 동해에서 살고 있어요. 010-1234-5678", "ko")
    assert not detect_values("LOCATION", "동해 바다 사진 제목 좀. 010-1234-5678", "ko")
