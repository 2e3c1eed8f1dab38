"""The words that the guard compares. Tables of words, and no logic.

English has a table for each kind of difference. Of other languages, whose words must be the same anyway, the tables
have negations only.
"""

import re

#: Common English words that the other languages of NEGATIONS lack, and those that some of them have as well.
ENGLISH = frozenset(
    "the how what which who whom whose when where why and are does did you your my with for should would could can "
    "this that its it there from to been were between than must i into me give write make list explain translate "
    "suggest draft compare describe".split()
)
ALSO_ENGLISH = frozenset("is of do has have was will an in a on or be at by not".split())
#: Words with which a text is taken for one in another language.
FOREIGN = frozenset(
    """der das dem und nicht ist sind ein eine einen wie wer wann warum ich wir sie mit für auf von zu
    les et est une qui quoi pour dans du sur avec comment pourquoi el los las una por para cómo qué
    il che di gli come perché o os uma não como een het van en wat hoe de da som och att og til""".split()
)

#: Words that carry no content of their own. Prepositions that give a direction are compared nevertheless.
FUNCTION = frozenset(
    """a an the this that these those there here it its itself i me my mine myself we us our ours you your yours he him
    his she her hers they them their theirs one ones someone somebody is am are be been being was were do does did
    doing has have had having will would shall should can could may might must ought and or but if then so as of to in
    on at by for from with into onto than about upon per via how what which who whom whose when where why whether
    please kindly just really actually basically simply also too very quite tell explain describe let anyone way ways
    method s re ve ll d m exactly happen happens get look looks called following""".split()
)

NEGATIONS = frozenset(
    """not no never none nobody nothing nowhere neither nor without cannot hardly barely scarcely rarely seldom except
    excluding lack lacks lacking unless stop avoid refuse fail fails failed prevent prevents ain non
    nicht kein keine keinen keinem keiner keines nie niemals ohne niemand nichts weder außer
    ne pas jamais sans aucun aucune rien guère
    nunca sin nada nadie ningún ninguno ninguna jamás tampoco
    non mai senza nessun nessuno nessuna niente nulla né
    não sem nem ninguém nenhum nenhuma
    niet geen nooit zonder niemand niets
    inte ikke aldrig utan uden uten ingen inga
    nie bez nigdy не нет ни без никогда değil yok ei""".split()
)

#: Words that mean the opposite of each other, or that limit what is said. Each list has sides, divided by `|`; words
#: of one side count as equal. Both prompts must have words of the same sides.
POLARITIES = tuple(
    tuple(frozenset(side.split()) for side in line.split("|"))
    for line in """
before prior earlier preceding previous pre | after following later subsequent next post afterwards | during while
increase increases increased increasing raise raises raising grow grows growing growth rise rises rising boost improve gain gains up upward higher | decrease decreases decreased decreasing reduce reduces reducing reduction shrink shrinks lower lowers lowering drop drops decline declines fall falls falling cut down downward worsen lose loses losing loss
minimum min minimal minimize least lowest smallest fewest shortest cheapest youngest slowest coldest worst lightest nearest closest weakest poorest | maximum max maximal maximize most highest largest biggest greatest longest oldest fastest hottest best heaviest farthest furthest strongest richest tallest expensive
enable enables enabled enabling activate activates allow allows allowed permit on | disable disables disabled disabling deactivate deactivates forbid forbids forbidden prohibit ban banned block blocks blocked off deny
with including include includes | without excluding exclude excludes except
more greater above over exceed exceeds bigger larger longer older taller faster hotter heavier better exceeding | less fewer below under smaller shorter younger slower colder lighter worse beneath
open opens opened opening unlock | close closes closed closing shut lock locks locked
start starts started starting begin begins began beginning launch commence | stop stops stopped end ends ended ending finish finishes finished quit halt terminate cease | restart resume pause
add adds added adding insert append attach install installs installed installing | remove removes removed removing delete deletes deleted deleting subtract uninstall detach erase drop
buy buys buying bought purchase | sell sells selling sold | rent lease hire
borrow borrows borrowing | lend lends lending loan
import imports importing | export exports exporting
upload uploads uploading | download downloads downloading
encode encodes encrypt encrypts compress zip serialize | decode decodes decrypt decrypts decompress unzip extract deserialize
send sends sending sent push give | receive receives receiving received pull fetch
win wins won winning | lose loses lost losing | tie draw
love loves like enjoy | hate hates dislike
safe safely harmless | dangerous unsafe risky harmful hazardous
legal lawful legally | illegal unlawful illegally
possible able | impossible unable
true correct right valid | false incorrect wrong invalid
left | right
north northern | south southern | east eastern | west western
hot warm heat heats heating | cold cool cools cooling freeze freezing | boil boiling melt melting
rich wealthy | poor
old ancient | new modern | young
early | late
big large | small little tiny
long | short
high tall | low
fast quick rapid rapidly quickly | slow slowly
easy simple easily | hard difficult complex
cheap inexpensive affordable | expensive costly
strong | weak
light bright | dark heavy
good benefit benefits advantage advantages pros positive strengths healthy | bad drawback drawbacks disadvantage disadvantages cons negative weaknesses harm harms unhealthy risks risk
cause causes caused causing reason | effect effects result results consequence consequences | cure treat treatment treatments symptom symptoms prevention
male man men boy boys father husband brother son king uncle | female woman women girl girls mother wife sister daughter queen aunt
parent parents | child children
teacher | student
employer boss | employee worker
indoor indoors inside internal interior | outdoor outdoors outside external exterior
public | private
input | output
front | back rear behind
top upper | bottom
day daytime morning | night nighttime evening | noon midnight afternoon
summer | winter | spring | autumn fall
always | sometimes | often usually | rarely seldom never
all every each everything everyone whole entire | some several | any | few | most | none | both | half | only solely | another other others else
same identical equal similar similarities similarity | different differ differs difference differences unlike distinct
multiple
last final latest
vertical vertically column columns | horizontal horizontally row rows
ascending | descending
encourage promote support supports | discourage oppose opposes
accept accepts approve | reject rejects decline refuse
succeed success pass | fail failure
live alive birth born | die dead death died
arrive arrival arrives | depart departure leave departs
enter entry login | exit logout
create creates creating build | destroy destroys destroying
save saves saving store | load loads loading spend
connect connects connecting join | disconnect disconnects leave
show display visible | hide hidden invisible
subscribe | unsubscribe | cancel
follow | unfollow
do redo | undo
read reads reading | write writes writing
ask | answer
domestic local | foreign global international
urban city | rural country
wet humid | dry
full | empty
sync synchronous | async asynchronous
static | dynamic
mutable | immutable
singular | plural
noun | verb | adjective | adverb
odd | even
prime | composite
liquid | solid | gas
vegetarian vegan | meat
renewable | nonrenewable
today | tomorrow | yesterday | tonight | now currently current | ago | soon
weekly week | monthly month | yearly annual annually year | daily | hourly hour
""".strip().splitlines()
)

NUMBERS = {
    word: str(value)
    for value, words in (
        (0, "zero null"),
        (1, "one first once single"),
        (2, "two second twice double couple pair"),
        (3, "three third thrice triple"),
        (4, "four fourth quarter quadruple"),
        (5, "five fifth"),
        (6, "six sixth"),
        (7, "seven seventh"),
        (8, "eight eighth"),
        (9, "nine ninth"),
        (10, "ten tenth"),
        (11, "eleven eleventh"),
        (12, "twelve twelfth dozen"),
        (13, "thirteen thirteenth"),
        (14, "fourteen fourteenth"),
        (15, "fifteen fifteenth"),
        (16, "sixteen sixteenth"),
        (17, "seventeen seventeenth"),
        (18, "eighteen eighteenth"),
        (19, "nineteen nineteenth"),
        (20, "twenty twentieth"),
        (30, "thirty thirtieth"),
        (40, "forty fortieth"),
        (50, "fifty fiftieth"),
        (60, "sixty sixtieth"),
        (70, "seventy seventieth"),
        (80, "eighty eightieth"),
        (90, "ninety ninetieth"),
        (100, "hundred hundredth"),
        (1000, "thousand"),
        (10**6, "million"),
        (10**9, "billion"),
        (10**12, "trillion"),
        ("half", "half halves"),
        ("decade", "decade decades"),
        ("century", "century centuries"),
    )
    for word in words.split()
}

#: Names of units, by the first one of the line.
UNITS = {
    word: line.split()[0]
    for line in """
mm millimeter millimeters millimetre millimetres
cm centimeter centimeters centimetre centimetres
m meter meters metre metres
km kilometer kilometers kilometre kilometres
in inch inches
ft foot feet
yd yard yards
mi mile miles
mg milligram milligrams
g gram grams gramme grammes
kg kilogram kilograms kilo kilos
t ton tons tonne tonnes
oz ounce ounces
lb lbs pound pounds
ml milliliter milliliters millilitre millilitres
l liter liters litre litres
gal gallon gallons
cup cups
pint pints
tbsp tablespoon tablespoons
tsp teaspoon teaspoons
s sec secs second seconds
ms millisecond milliseconds
min minute minutes
h hr hrs hour hours
day days
week weeks
month months
year years
celsius centigrade
fahrenheit
kelvin
percent percentage
bit bits
byte bytes
kb kilobyte kilobytes
mb megabyte megabytes
gb gigabyte gigabytes
tb terabyte terabytes
hz hertz
khz kilohertz
mhz megahertz
ghz gigahertz
w watt watts
kw kilowatt kilowatts
v volt volts
a amp amps ampere amperes
j joule joules
cal calorie calories
kcal kilocalorie kilocalories
usd dollar dollars
eur euro euros
gbp sterling
jpy yen
inr rupee rupees
cent cents
acre acres
ha hectare hectares
degree degrees
radian radians
kmh kph
mph
px pixel pixels
em rem
""".strip().splitlines()
    for word in line.split()
}
#: Units whose names are words of other meanings: they count behind a number only.
AFTER_NUMBERS = frozenset("in m t a s l g h j v w second seconds min day days week weeks month months year years em".split())

DATES = {
    word: line.split()[0]
    for line in """
january jan
february feb
march
april apr
june jun
july jul
august aug
september sept sep
october oct
november nov
december dec
monday mon
tuesday tue tues
wednesday
thursday thu thurs
friday fri
saturday
sunday
easter
christmas xmas
weekend weekends
weekday weekdays
bc bce
ad ce
am
pm
utc gmt
""".strip().splitlines()
    for word in line.split()
}

#: What a question asks for; the first pattern that is found counts.
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
        ("who", r"\b(who|whom|whose|(what|which) (person|people))\b"),
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
        ("yesno", r"^\W*(is|are|am|was|were|do|does|did|has|have|had|can|could|will|would|should|shall|may|might|must)\b"),
    )
)
#: Kinds that ask for the same.
SAME_KINDS = {"which": "what", "list": "what"}

#: What is said for politeness.
POLITE = re.compile(
    r"^\W*(hi|hello|hey|ok|okay|so|well|dear assistant|good (morning|evening|day))( there)?\b[ ,!.]*|"
    r"\b(pls|please|kindly)\b[ ,!.]*|"
    r"\b(thanks|thank you|many thanks)( a lot| so much| very much)?( in advance)?\b[ ,!.]*|"
    r"\b(i am |i m )?sorry to (bother|disturb|trouble) you\b,?( but)?|"
    r"\b(if|i hope) (you (do not|don t|would not) mind( my asking)?|it is ?n[o']t too much trouble|(this|it) is not too much trouble)\b[ ,:]*|"
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
    r"\bhow (do|can|could|would|should|might|does|to) ?(i|you|we|one|someone|somebody|anyone|a person)?\b"
    r"(?= (?!do\b)[a-z])( go about)?|\bwhat (is|s) (a|the) (way|method) (to|of|for)\b|\bwhat (do|should|must) (i|you|we) do to\b"
)

TENSES = {
    "past": frozenset("did was were had used".split()),
    "future": frozenset("will shall gonna ll".split()),
    "should": frozenset("should ought must supposed need".split()),
    "would": frozenset("would".split()),
    "may": frozenset("may might".split()),
}
PERSONS = {
    "you": frozenset("you your yours yourself".split()),
    "he": frozenset("he him his himself".split()),
    "she": frozenset("she her hers herself".split()),
    "they": frozenset("they them their theirs themselves".split()),
    "we": frozenset("we us our ours ourselves".split()),
}

#: The prepositions that say who does what to whom, or which way.
DIRECTIONS = frozenset("from by than into against onto towards toward out".split())

#: Words that may replace each other; the first one of the line stands for all.
SYNONYMS = {
    word: line.split()[0]
    for line in """
fast quick quickly rapid rapidly speedily speedy
big large huge
small little tiny
begin start commence
end finish
buy purchase
fix repair mend
error bug problem issue trouble
show display
choose select pick
build construct
car automobile
movie film
kid child children kids
photo picture image photograph photos pictures
phone telephone
important significant crucial essential
main primary major principal key
hard difficult
easy simple
method technique approach
benefit advantage
drawback disadvantage downside
help assist aid
need require
happen occur
answer reply respond
learn study
teach instruct
job occupation profession
doctor physician
country nation
author writer
write wrote written
city town
price cost
cause trigger
create generate
remove delete
check verify
change modify alter
merge combine
stop halt
house home
trip journey
meal dish
gather collect
rich wealthy
often frequently
purpose function
work operate
difference population inhabitant inhabitants populations
currency money
inventor invent invented
discover discovered discoverer
found founded founder establish established
locate located location
get obtain acquire receive
store save
clean wash
largest biggest greatest
fastest quickest
smallest tiniest
bigger larger
look appear seem
cook prepare
effect impact effects impacts influence
symptom sign
meaning definition mean
summary summarize summarise
convert conversion turn transform
calculate compute calculation
grow cultivate
""".strip().splitlines()
    for word in line.split()
}

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
