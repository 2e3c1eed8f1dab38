"""The words that the guard compares. Tables only.

English has a table for each kind of difference. Of other languages, whose words must be the same anyway, the tables
have negations only.
"""


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def table_lines(text: str) -> list[str]:
    """Return the lines of a table. A line that begins with a space belongs to the one before."""
    return text.strip().replace("\n ", " ").splitlines()


#: Common English words that the other languages of NEGATIONS lack, and those that some of them have as well.
ENGLISH = word_set(
    "the how what which who whom whose when where why and are does did you your my with for should would could can "
    "this that its it there from to been were between than must i into me give write make list explain translate "
    "suggest draft compare describe"
)
ALSO_ENGLISH = word_set("is of do has have was will an in a on or be at by not")
#: Words with which a text is taken for one in another language.
FOREIGN = word_set(
    """der das dem und nicht ist sind ein eine einen wie wer wann warum ich wir sie mit für auf von zu
    les et est une qui quoi pour dans du sur avec comment pourquoi el los las una por para cómo qué
    il che di gli come perché o os uma não como een het van en wat hoe de da som och att og til"""
)

#: Words that carry no content of their own. Prepositions that give a direction are compared nevertheless.
FUNCTION = word_set(
    """a an the this that these those there it its itself i me my mine myself we us our ours you your yours he him
    his she her hers they them their theirs one ones someone somebody is am are be been being was were do does did
    doing has have had having will would shall should can could may might must ought and or but if then so as of to in
    on at by for from with into onto than about upon per via how what which who whom whose when where why whether
    please kindly just really actually basically also tell explain describe let anyone way ways
    method s re ve ll d m exactly happen happens get look looks called following"""
)

ARTICLES = word_set("a an the my your our this that these those")
#: Words that limit what follows them, so that their place matters.
LIMITS = word_set(
    "only just even also all every each any some most many few both either solely merely always never except but at "
    "least"
)
#: Words that join parts of a sentence in different ways.
CONNECTIVES = word_set("or but if unless because although though while whereas than then until since")
#: Prepositions of parts that may stand at the beginning or the end of a sentence without another meaning.
MOVABLE = word_set("in on at for during under using")

NEGATIONS = word_set(
    """not no never none nobody nothing nowhere neither nor without cannot hardly barely scarcely rarely seldom except
    excluding lack lacks lacking unless stop avoid refuse fail fails failed prevent prevents ain non
    nicht kein keine keinen keinem keiner keines nie niemals ohne niemand nichts weder außer
    ne pas jamais sans aucun aucune rien guère
    nunca sin nada nadie ningún ninguno ninguna jamás tampoco
    non mai senza nessun nessuno nessuna niente nulla né
    não sem nem ninguém nenhum nenhuma
    niet geen nooit zonder niemand niets
    inte ikke aldrig utan uden uten ingen inga
    nie bez nigdy не нет ни без никогда değil yok ei"""
)

#: Words that mean the opposite of each other, or that limit what is said. Each list has sides, divided by `|`; words
#: of one side count as equal. Both prompts must have words of the same sides.
POLARITIES = tuple(
    tuple(word_set(side) for side in line.split("|"))
    for line in table_lines(
        """
before prior earlier preceding previous pre | after following later subsequent next post afterwards | during while
increase increases increased increasing raise raises raising grow grows growing growth rise rises rising boost
  improve gain gains up upward higher | decrease decreases decreased decreasing reduce reduces reducing reduction
  shrink shrinks lower lowers lowering drop drops decline declines fall falls falling cut down downward worsen lose
  loses losing loss
minimum min minimal minimize least lowest smallest fewest shortest cheapest youngest slowest coldest worst lightest
  nearest closest weakest poorest | maximum max maximal maximize most highest largest biggest greatest longest oldest
  fastest hottest best heaviest farthest furthest strongest richest tallest expensive
enable enables enabled enabling activate activates allow allows allowed permit on | disable disables disabled
  disabling deactivate deactivates forbid forbids forbidden prohibit ban banned block blocks blocked off deny
with including include includes | without excluding exclude excludes except
more greater above over exceed exceeds bigger larger longer older taller faster hotter heavier better exceeding |
  less fewer below under smaller shorter younger slower colder lighter worse beneath
open opens opened opening unlock | close closes closed closing shut lock locks locked
start starts started starting begin begins began beginning launch commence | stop stops stopped end ends ended
  ending finish finishes finished quit halt terminate cease | restart resume pause
add adds added adding insert append attach install installs installed installing | remove removes removed removing
  delete deletes deleted deleting subtract uninstall detach erase drop
buy buys buying bought purchase | sell sells selling sold | rent lease hire
borrow borrows borrowing | lend lends lending loan
import imports importing | export exports exporting
upload uploads uploading | download downloads downloading
encode encodes encrypt encrypts compress zip serialize | decode decodes decrypt decrypts decompress unzip extract
  deserialize
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
good benefit benefits advantage advantages pros positive strengths healthy | bad drawback drawbacks disadvantage
  disadvantages cons negative weaknesses harm harms unhealthy risks risk
cause causes caused causing reason | effect effects result results consequence consequences | cure treat treatment
  treatments symptom symptoms prevention
male man men boy boys father husband brother son king uncle | female woman women girl girls mother wife sister
  daughter queen aunt
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
all every each everything everyone whole entire | some several | any | few | most | none | both | half | only solely
  | another other others else
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
redo | undo
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
"""
    )
)

#: Words that may replace each other; the first one of the line stands for all.
SYNONYMS = {
    word: line.split()[0]
    for line in table_lines(
        """
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
"""
    )
    for word in line.split()
}
