"""The phrases that the guard reads: what a question asks for, politeness, persons, and spellings. Tables only."""

import re

from web.semantic_cache.guard_words import word_set

#: The kinds of questions. The first pattern that matches counts.
KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("amount", r"\b(how (many|much)|what (is|was|are|were) the (number|amount|count|quantity|total) of)\b"),
        ("age", r"\b(how old|what (is|was) the age)\b"),
        ("cost", r"\b(how expensive|what (does|do|did|will|would) .* cost|price|cost)\b"),
        ("duration", r"\b(how long|what (is|was) the duration)\b"),
        ("distance", r"\bhow far\b"),
        ("frequency", r"\bhow (often|frequently)\b"),
        ("degree", r"\bhow (tall|high|big|large|small|deep|wide|fast|heavy|hot|cold|strong|close|near|safe)\b"),
        ("when", r"\b(when|(what|which) (year|date|day|month|time|century|decade))\b"),
        ("where", r"\b(where|(what|which) (place|location))\b"),
        ("whose", r"\bwhose\b"),
        ("who", r"\b(who|whom|(what|which) (person|people))\b"),
        ("why", r"\b(why|how come|what (is|are|was|were) the reasons?|for what reason|what makes)\b"),
        ("howto", r"\b(how to|howto|what (is|are) (a|the)( \w+)? (way|ways|method|steps) (to|of|for))\b"),
        ("how", r"\bhow\b"),
        ("which", r"\bwhich\b"),
        ("what", r"\bwhat\b"),
        ("translate", r"\btranslat\w+\b"),
        ("write", r"\b(write|draft|compose|generate|create)\b"),
        ("list", r"\b(list|enumerate|name)\b"),
        ("summary", r"\b(summar\w+|sum up|shorten|tldr)\b"),
        ("compare", r"\b(compare|contrast)\b"),
        (
            "yesno",
            r"^\W*(is|are|am|was|were|do|does|did|has|have|had|can|could|will|would|should|shall|may|might|must)\b",
        ),
    )
)
#: Kinds that ask for the same.
SAME_KINDS = {"which": "what", "list": "what"}

#: Phrases of politeness, which are left out.
POLITE = re.compile(
    r"^\W*(hi|hello|hey|ok|okay|so|well|dear assistant|good (morning|evening|day))( there)?\b[ ,!.]*|"
    r"\b(pls|please|kindly)\b[ ,!.]*|"
    r"\b(thanks|thank you|many thanks)( a lot| so much| very much)?( in advance)?\b[ ,!.]*|"
    r"\b(i am |i m )?sorry to (bother|disturb|trouble) you\b,?( but)?|"
    r"\b(if|i hope) (you (do not|don t|would not) mind( my asking)?|"
    r"(this|it) is not too much trouble)\b[ ,:]*|"
    r"\b(can|could|would|will) (you|anyone|somebody|someone) (please )?(be so kind as to |do me a favou?r and )?"
    r"((tell|explain|show|describe|help|let|walk)( to)?( me| us)?( know| understand| through)?\b)?|"
    r"\bmay i ask( you)?( for)?\b|\bi (would|d) (really )?(appreciate it|be grateful) if you( could| would)?\b|"
    r"\b(do|does) (you|anyone|somebody|someone) (happen to )?know\b|"
    r"\b(i|we) (want|need|would like|d like|am trying|m trying|wish) to (know|find out|understand|learn)( about)?\b|"
    r"\b(i|we) (am|was|m|are|re) (just )?(wondering|curious)( about| if you (might|could|can) tell me)?\b|"
    r"\b(give|tell|explain to|show) (me|us)\b( about)?|"
    r"\bin (simple|plain) (terms|words|english)\b",
    re.IGNORECASE,
)
HOW_TO = re.compile(
    r"\bhow to\b|\bhow (do|does|can|could|would|should) (i|you|we|one|someone|somebody|anyone|a person)\b( go about)?|"
    r"\bhow (i|you|we|one) (can|could|should)\b|\bwhat (is|s) (a|the) (way|method) (to|of|for)\b|"
    r"\bwhat (do|should|must) (i|you|we) do to\b"
)

#: An obligation, which is read as `must`.
HAVE_TO = re.compile(r"\b(have|has|had|having|got) to\b")

TENSES = {
    "past": word_set("did was were had used"),
    "future": word_set("will shall gonna ll"),
    "should": word_set("should ought supposed"),
    "must": word_set("must need"),
    "would": word_set("would"),
    "may": word_set("may might"),
    "can": word_set("can could"),
}
#: The verbs before the participle of a passive, and participles that do not end in `ed`. `Get started` is no passive.
PASSIVES = word_set("is are am was were be been being get gets got getting")
PARTICIPLES = word_set(
    "done made taken given known seen written sold bought paid built sent told taught held kept lost found beaten "
    "eaten bitten hit hurt led left met shot stolen thrown won worn"
)
NO_PARTICIPLES = word_set("started need speed feed seed")
#: The first words of questions for yes or no: those of one line ask alike.
AUXILIARIES = {
    word: name
    for name, of in (("be", "is are am was were"), ("do", "do does did"), ("have", "has have had"))
    for word in of.split()
}
PERSONS = {
    "you": word_set("you your yours yourself"),
    "he": word_set("he him his himself"),
    "she": word_set("she her hers herself"),
    "they": word_set("they them their theirs themselves"),
    "we": word_set("we us our ours ourselves"),
}
#: The one who asks. Questions without other persons may also be asked without this one.
ASKING = word_set("i me my mine myself")

#: The prepositions that say who does what to whom, or which way.
DIRECTIONS = word_set("from by than into against onto towards toward out")
#: Prepositions that do not replace each other before a word. Others do, as in `the population of (in) France`.
DISTINCT_LEADS = word_set("to for with about per via")

#: Spellings of Britain, and words that are written in two ways: patterns, and what they are replaced by.
SPELLINGS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"(?<=\w\w\w)(i|y)s(e|es|ed|ing|ation|ations|er|ers)$", r"\1z\2"),
        (r"(?<=\w\w)our(s|ed|ing|ite|ites|al)?$", r"or\1"),
        (r"^(met|cent|theat|fib|lit|kilomet|centimet|millimet)re(s?)$", r"\1er\2"),
        (r"(?<=\w)ae(?=\w)", "e"),
        (r"ogue(s?)$", r"og\1"),
        (r"^programme(s?)$", r"program\1"),
        (r"^licence(s?)$", r"license\1"),
        (r"^cheque(s?)$", r"check\1"),
        (r"^grey$", "gray"),
        (r"^adviser(s?)$", r"advisor\1"),
        (r"^judgement(s?)$", r"judgment\1"),
        (r"(?<=\w\wl)l(ed|ing|er|ers)$", r"\1"),
        (r"^whats$", "what"),
    )
)
