"""Japanese: names of private persons are found without spaces and capitals, names of public knowledge stay."""

import pytest
from tests.privacy.detection import detect_values, find_private_names, make_filter

from eyas.privacy.filter import CleanedRecord

PAIRS = [
    ("榎本千夏", "妻の{}が入院したので、会社に休みの連絡を書きたいです。", "画家の{}の代表作を三つ教えてください。"),
    ("夏目漱石", "大家の{}さんが敷金を返してくれません。", "{}の小説の特徴をまとめて。"),
    ("御子柴蓮", "うちの部下の{}が三日連続で遅刻しました。注意のメールを考えて。", "{}が主人公の物語を書いて。"),
    (
        "徳川家康",
        "隣の{}さんの騒音がひどくて眠れません。管理会社への苦情文をください。",
        "{}が江戸幕府を開いた理由は？",
    ),
    (
        "小柳ゆかり",
        "親友の{}に貸した五万円を返してもらいたい。角が立たない言い方は？",
        "歌手の{}のアルバムで名曲はどれ？",
    ),
    ("大谷翔平", "患者の{}さん、血圧の薬を変更しました。紹介状を整えてください。", "{}のホームラン記録を比較して。"),
    (
        "仲宗根陸斗",
        "担任です。{}くんの保護者に欠席が多いことを電話で伝える台詞がほしい。",
        "{}は歴史上どんな人物でしたか。",
    ),
    ("芥川龍之介", "息子の{}が学校でいじめられています。担任の先生への手紙を考えて。", "{}の作品を時代順に並べて。"),
    ("マリア・フェルナンデス", "ヘルパーの{}さんにお礼の手紙を書きたい。", "映画監督の{}の作風を論じてください。"),
    ("薬師寺宗介", "{}と離婚調停中です。養育費の相場は？", "大河ドラマで{}を演じた俳優は誰ですか。"),
]
PHRASES = [
    ("はじめまして、私は五百旗頭颯真と申します。部屋を借りたいです。", "五百旗頭颯真"),
    ("氏名：都築　佐和子\n生年月日：昭和五十年\n既往歴：喘息", "都築　佐和子"),
    ("阿久津様\nお世話になっております。請求書の件でご連絡しました。", "阿久津"),
    ("経理課の方へ。目黒です。給与の振込口座を変更したいです。", "目黒"),
    ("退職届を書いてください。氏名は鵜沼千早、所属は物流二課です。", "鵜沼千早"),  # a surname in no list
    ("祖父牟礼田善三の弔辞をお願いします。漁師を六十年続けた人です。", "牟礼田善三"),
    ("夫の航希は家事をしません。どう話せばいい？", "航希"),
    ("オルブライト先生、息子は卵アレルギーです。給食のことで相談したいです。", "オルブライト"),
    ("義母のふみ江さんが毎週アポなしで来ます。うちの家計にも口を出します。", "ふみ江"),
    ("請求書はまだですか。明日までに送ってください。\n\n楠木", "楠木"),
    ("小鳥遊さんに借りたお金の返済が遅れています。謝罪のメールを書いて。", "小鳥遊"),
]
ORDINARY = [
    "坂本龍馬の生涯を年表にしてください。",
    "たろうくんはりんごを5個、はなこさんは3個持っています。全部で何個ですか。",
    "山口県と福島県の名物を教えて。",
    "村上春樹と川端康成の文体を比較して。",
    "皆さんにおすすめの温泉はどこですか。",
    "お母さんと子どもで作れるお菓子のレシピは？",
    "織田信長が本能寺で倒れた理由を論じてください。",
    "トヨタとホンダの経営の違いは？",
    "ニュートンの法則を中学生向けに説明して。",
    "夫の転勤が決まりました。引っ越しのチェックリストをください。",
    "母の愛をテーマに俳句を三つ作って。",
    "担当は誰に決めればいいですか。",
    "スタッフさんとママさんへのお礼の文面を考えて。",
    "続きを書いて。「遅かったな」と桐生は言った。",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "ja")
    assert not find_private_names(public.format(name), "ja")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "ja")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "ja")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("昨日は二階堂様がお越しでした", ["二階堂"]),
        ("田中一郎が来た", ["田中一郎"]),
        ("津久井柚葉さんの見積り", ["津久井柚葉"]),
        ("多々良悟さんのPC", ["多々良悟"]),
        ("山田 太郎です", ["山田 太郎"]),
        ("患者さんとお客様", []),
        ("大阪大学の教授", []),
        ("担当の弁護士田村先生", ["田村"]),
    ],
)
def test_where_a_name_begins_and_ends(text, names):
    assert detect_values("PERSON", text, "ja") == names


def test_a_surrogate_has_the_shape_of_the_name_and_other_mentions_get_it_too():
    (record,) = make_filter().clean([(("上司の榎本千夏は厳しい。千夏さんに謝りたい。榎本が怒っている。",), "ja")])
    assert isinstance(record, CleanedRecord)
    text = record.texts[0]
    surname, given = text[3:5], text[5:7]
    assert text == f"上司の{surname}{given}は厳しい。{given}さんに謝りたい。{surname}が怒っている。"
    assert "榎本" not in text
    assert "千夏" not in text


def test_towns_that_are_surnames():
    assert detect_values("LOCATION", "姉は松本在住で、電話は090-1234-5678です", "ja") == ["松本"]
    assert not detect_values("LOCATION", "担当の松本さん、電話は090-1234-5678です", "ja")
