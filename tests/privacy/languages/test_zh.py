"""Chinese: names of private persons are found without spaces and capitals, names of public knowledge stay."""

import pytest
from tests.privacy.detection import detect_values, find_private_names, make_filter

from eyas.privacy.filter import CleanedRecord

PAIRS = [
    ("顾晓棠", "我同事{}请了三天病假，领导让我写份情况说明。", "请介绍一下画家{}的代表作。"),
    ("苏轼", "房东{}一直不退押金，我该怎么起诉他？", "请赏析{}的一首词。"),
    ("尹丽娜", "跟{}分手以后我每天失眠，要不要去看心理医生？", "{}是哪一年夺得奥运冠军的？"),
    ("欧阳雪梅", "患者{}对青霉素过敏，请把病历整理一下。", "比较{}和冰心的散文风格。"),
    ("姚明", "我表弟{}下个月结婚，红包包多少合适？", "{}对中国篮球的贡献有哪些？"),
    ("仝海波", "帮我催一下{}还钱，他欠我两万块，借条还在我手里。", "写一个故事，主人公叫{}，他会隐身。"),
    ("林徽因", "班主任{}说我儿子上课打架，我怎么回复她的微信？", "论文题目是{}的建筑思想，请列提纲。"),
    ("冉秋生", "快递是{}签收的，可是我根本没收到包裹。", "电影里{}这个角色象征什么？"),
    ("钟南山", "我的租客{}拖欠房租三个月了。", "谈谈{}在学术上的成就。"),
    ("戚小茹", "请给{}写一封生日祝福，她是我闺蜜。", "{}有24颗糖，分给弟弟一半，还剩多少颗？"),
    ("尉迟建民", "原告{}在工地受伤，申请工伤赔偿，请写起诉状。", "历史上的{}指挥过哪几场战役？"),
    ("阿依夏木·吐尔逊", "我室友{}的电话打不通，我很担心她。", "歌手{}的专辑风格是什么？"),
]
PHRASES = [
    ("你好，我叫亓官文博，想咨询一下退款。", "亓官文博"),
    ("姓名：麻翠兰\n年龄：63岁\n主诉：胸闷", "麻翠兰"),
    ("尊敬的佟老师：孩子发烧了，今天请假。", "佟"),
    ("给男朋友的爸妈写拜年短信，我叫小雅，别太肉麻。", "小雅"),
    ("我同事总是把活甩给我，主管老裴装看不见，怎么办啊", "裴"),
    ("排一下家长群的名单，班主任尹老师", "尹"),  # a title at the end of the text
    ("收件人是郜蓝天，地址我发你微信。", "郜蓝天"),
    ("我姓禤，昨天在你们店里买的手机坏了，要求退款。", "禤"),
    ("我媽媽陳淑貞住院了，醫生說要動手術。", "陳淑貞"),
]
ORDINARY = [
    "李白和杜甫的诗歌风格有什么不同？",
    "马上就要高考了，怎么安排复习时间？",
    "小红有5个苹果，小明有3个，一共有多少个？",
    "请用成语“画龙点睛”造句。",
    "王国维的《人间词话》讲了什么？",
    "牛顿第二定律怎么推导？",
    "续写：顾长卿推开门，雪落了一肩。“你来晚了。”苏念说。",
    "我叫外卖迟到了，怎么投诉？",
    "主管老是骂人，怎么办？",
    "推荐几道用黄瓜和牛肉做的菜。",
    "李宁和安踏哪个品牌的跑鞋更好？",
    "周末去武汉旅游，黄鹤楼门票多少钱？",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "zh")
    assert not find_private_names(public.format(name), "zh")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "zh")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "zh")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("跟李伟明天见面", ["李伟"]),
        ("跟李伟明见面", ["李伟明"]),
        ("写张纸条", []),
        ("有三位老师", []),
        ("方便面和高铁", []),
        ("我見到了劉建國先生", ["劉建國"]),
    ],
)
def test_where_a_name_begins_and_ends(text, names):
    assert detect_values("PERSON", text, "zh") == names


def test_a_surrogate_has_the_shape_of_the_name_and_other_mentions_get_it_too():
    (record,) = make_filter().clean([(("我老板王小明骂我，小明还扣我工资。我住在昌吉市。",), "zh")])
    assert isinstance(record, CleanedRecord)
    text = record.texts[0]
    surname, given = text[3], text[4:6]
    assert text.startswith(f"我老板{surname}{given}骂我，{given}还扣我工资。我住在")
    assert text.endswith("市。")
    assert "小明" not in text
    assert "昌吉" not in text


def test_a_traditional_name_gets_a_traditional_surrogate():
    (record,) = make_filter().clean([(("我的房東陳建國說要漲租",), "zh")])
    assert isinstance(record, CleanedRecord)
    surname = record.texts[0][4]
    assert surname != "陳"
    assert surname.translate(str.maketrans("张刘赵黄吴孙马罗郑谢韩", "張劉趙黃吳孫馬羅鄭謝韓")) == surname
