"""The numbers, units and dates that the guard compares. Tables only."""

from web.semantic_cache.guard_words import table_lines, word_set

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

#: The endings of ordinal numbers in digits.
ORDINALS = word_set("st nd rd th")

#: Names of units, by the first one of the line.
UNITS = {
    word: line.split()[0]
    for line in table_lines(
        """
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
"""
    )
    for word in line.split()
}
#: Units whose names are words of other meanings: they count behind a number only.
AFTER_NUMBERS = word_set("in m t a s l g h j v w second seconds min day days week weeks month months year years em")

DATES = {
    word: line.split()[0]
    for line in table_lines(
        """
january jan
february feb
march
april apr
monthofmay
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
"""
    )
    for word in line.split()
}
