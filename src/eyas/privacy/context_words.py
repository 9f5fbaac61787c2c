"""Words that say something about the words beside them: fields, verbs, determiners, months. Our own lists."""

# Fields that hold other things as often as people.
WEAK_LABELS = frozenset(
    """
    name from to von an de à para van aan od do från till user username owner host agent driver contact kontakt
    cc bcc contato contacto contatto client member from author reviewer holder provider nom nombre nome naam
    namn
    """.split()  # noqa: SIM905
)
USER_LABELS = frozenset(
    """
    user username login author owner assignee reporter reviewer committer member
    """.split()  # noqa: SIM905
)
COMPANY = frozenset(
    """
    gmbh inc ltd llc corp ag kg bv nv sa srl spa sl sas sarl oy ab as co plc group company
    """.split()  # noqa: SIM905
)
DETERMINERS = frozenset(
    """
    the a an this that these those every each any no some in on of at der die das ein eine dem den des im am le
    la les un une el los las il lo gli o os as um uma het een en ett
    """.split()  # noqa: SIM905
)
MONTHS = frozenset(
    """
    may april june august march july mai juni juli mars abril mayo julio maj marzo
    """.split()  # noqa: SIM905
)
PLACE_WORDS = frozenset(
    """
    in to from at near around of visit visited via nach aus in bei à de en a da em para w we z do i från till te
    uit naar
    """.split()  # noqa: SIM905
)
CONJUNCTIONS = frozenset(
    """
    and und et y e i en och & with
    """.split()  # noqa: SIM905
)
AGE_WORDS = frozenset(
    """
    born age aged geb geboren né née nacido nacida nato nata nascido nascida ur född dob
    """.split()  # noqa: SIM905
)
TRANSFER_VERBS = frozenset(
    """
    give gives gave given send sends sent sell sells sold lend lends lent owe owes owed hand hands handed pays
    paid takes took gets got bought borrows borrowed
    """.split()  # noqa: SIM905
)
SPEECH_VERBS = frozenset(
    """
    ask asked tell told texted pinged invited thanked frag
    """.split()  # noqa: SIM905
)
CLAUSE_STARTS = frozenset(
    """
    that too to i we if he she im i'm not about where when what how
    """.split()  # noqa: SIM905
)
# Last words of phrases with which a speaker names himself.
SELF_INTRODUCTIONS = frozenset(
    """
    its it's is im i'm am bin ist spricht suis c'est ici soy sono qui sou é a o ben jestem tu är
    """.split()  # noqa: SIM905
)
BE_AND = CONJUNCTIONS | frozenset(
    """
    is was are were has had will would can ist war hat est était es era è sono é is was jest był är var
    """.split()  # noqa: SIM905
)
THING_NOUNS = frozenset(
    """
    falls hills bells heights springs river lake bridge park airport university college county island islands
    station center centre prize
    theorem effect law laws equation syndrome disease museum stadium hospital school institute foundation inc
    ltd gmbh bank award cup square tower hall mountain mountains bay beach ocean desert test principle paradox
    constant method algorithm distribution series sequence
    """.split()  # noqa: SIM905
)
NAMES_AFTER_TITLES = frozenset(
    """
    may will young king long little short good best wise white black green brown grace
    """.split()  # noqa: SIM905
)
