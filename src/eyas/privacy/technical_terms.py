"""Names that are terms: programming languages, and people whom a theorem, a method or a unit is called after."""

import re

# Facts, in lower case; of a compound ("Boyer-Moore", "Monte Carlo") every part stands here.
TERMS = frozenset(
    """
    julia ruby java pascal ada perl scala haskell erlang elixir kotlin swift rust dart crystal clojure python lisp
    django flask jenkins maven jupyter anaconda pandas selenium cassandra cypher gatsby hugo jekyll sphinx
    bayes fourier turing gauss euler newton dijkstra huffman fibonacci monte carlo markov mandelbrot laplace taylor
    maclaurin poisson bernoulli boole hamming kruskal prim bellman ford floyd warshall knuth morris pratt boyer moore
    kadane levenshtein jaccard cauchy riemann hilbert schwarz schwartz fermat pythagoras venn schrödinger heisenberg
    planck boltzmann maxwell faraday ohm kirchhoff joule celsius fahrenheit kelvin hertz volta ampère ampere doppler
    hooke coulomb avogadro mendel pavlov nash pareto gini lorenz shannon nyquist kalman hesse jacobi cramer cholesky
    lagrange hermite legendre chebyshev simpson runge kutta eratosthenes archimedes euclid euklid euclide cantor gödel
    zorn noether galois abel collatz goldbach mersenne catalan stirling pearson spearman kendall fisher wilcoxon mann
    whitney kolmogorov smirnov bloom merkle diffie hellman caesar vigenère hanoi hanói sierpinski koch conway hopcroft
    karp rabin miller tarjan strassen raphson seidel gram schmidt schur jordan hölder minkowski lipschitz banach
    lebesgue stokes green navier bohr rutherford mendeleev carnot bernoulli moivre vieta viète horner nernst maslow
    dunning kruger moore murphy occam ockham zipf benford bellman nesterov dirichlet gibbs hastings metropolis fick
    newtons arrhenius heron héron thales talete talès cavalieri torricelli pitagora pitágoras pythagore pythagore
    """.split()  # noqa: SIM905
)
# Products, firms, games, feasts, dishes, planets, continents: named in letters, and in no list of common words.
BRANDS = frozenset(
    """
    photoshop illustrator canva figma notion trello asana slack zoom skype discord twitch reddit pinterest tumblr
    snapchat snap tinder bumble hinge linkedin xing duolingo chatgpt openai gpt claude gemini copilot midjourney bard
    alexa siri roblox minecraft fortnite valorant overwatch skyrim pokemon pokémon pikachu tetris nintendo playstation
    xbox wii steam sims zelda mario sega atari lego barbie disney pixar marvel hogwarts gryffindor narnia mordor
    airtable zapier shopify woocommerce wordpress wix squarespace etsy ebay aliexpress alibaba temu shein zalando
    vinted amazon costco walmart aldi lidl rewe edeka carrefour auchan mercadona leroy decathlon ikea zara primark
    sephora hm nike nikes adidas puma reebok asics gucci prada chanel dior rolex casio swatch
    toyota honda nissan mazda subaru suzuki hyundai kia volvo saab scania renault peugeot citroën dacia fiat alfa
    lancia ferrari lamborghini maserati seat skoda škoda opel porsche audi bmw mini jaguar chevrolet chevy dodge jeep
    buick cadillac chrysler harley vespa ducati yamaha kawasaki lufthansa ryanair easyjet delta emirates klm flixbus
    samsung huawei xiaomi motorola nokia siemens bosch philips panasonic canon nikon fuji lenovo asus acer dell intel
    nvidia amd cisco oracle salesforce hubspot mailchimp sap datev quickbooks stripe paypal revolut wise klarna swish
    bizum venmo zelle netflix spotify hulu hbo youtube tiktok instagram facebook whatsapp telegram threads
    nutella nespresso keurig starbucks frappuccino mcdonald mcdonalds mcdonald's burger subway domino doritos oreo oreos
    snickers twix pringles pepsi coca coke fanta sprite redbull heineken ikea tupperware velcro kleenex lego playmobil
    monopoly scrabble uno bitcoin ethereum dogecoin kubernetes golang pytorch tensorflow
    paracetamol ibuprofen aspirin ozempic prozac xanax covid
    navidad nochebuena reyes pascua natale pasqua ferragosto natal páscoa carnaval noël pâques toussaint
    weihnachten ostern pfingsten karneval fasching silvester kerst pasen sinterklaas koningsdag
    midsommar lucia valborg påsk jul wielkanoc wigilia sylwester boże narodzenie halloween thanksgiving hanukkah diwali
    ramadan eid bible biblia koran quran internet wifi english inglés inglese anglais
    mercury venus earth mars jupiter saturn uranus neptune pluto europe asia africa america antarctica oceania europa
    amerika afrika asien europe
    gochujang kimchi ramen sushi paella tiramisu lasagna
    """.split()  # noqa: SIM905
)
_TECHNICAL = re.compile(
    r"(?i)theorem|\bsatz|th[ée]or|teorem|stelling|twierdz|\bsats\b|algor[iy]t|transform|machine|m[áa]quina|macchina"
    r"|maszyn|maskin|m[ée]thod|m[ée]tod|\bchains?\b|kette|cha[iî]ne|catena|cadena|cadeia|łańcuch|kedj|keten|triangle"
    r"|dreieck|tri[áa]ng|driehoek|trójkąt|triangel|sequence|folge\b|\bsuite|reihe|s[ée]rie|successione|sucesi|sequência"
    r"|rij\b|ciąg|följd|distribu|verteil|verdeling|rozkład|fördelning|filter|\bcode|coding|codific|kod|program|script"
    r"|func|funktion|fonction|funzione|funç|funkcj|compil|langage|sprache|lenguaje|linguagg|linguagem|\btaal|język|språk"
    r"|librar|package|framework|install|syntax|integral|equation|équation|gleichung|ecuaci|equazion|equaç|vergelijking"
    r"|równani|ekvation|matrix|matri[cz]|graph|fra[ck]tal|\blaws?\b|gesetz|\bloi\b|\bley\b|legge|\blei\b|\bwet\b|prawo"
    r"|\blag\b|number|zahl|n[úu]mero|liczb|getal|prove\b|beweis|statisti|probab|array|class\b|loop|variable|implement"
    r"|constant|formula|formel|test\b|fraktal|tree|hash|numeric|numéri|approx|eliminat|distance|coefficient|dreiecks"
)
# What is asked about a word: then a quoted word is that word.
_ABOUT_WORDS = re.compile(
    r"(?i)\b(?:words?|verbs?|nouns?|adjectives?|sentences?|synonyms?|rhymes?|means?|spell\w*|pronounc\w*"
    r"|w[öo]rt\w*|satz|verb\w*|substantiv\w*|bedeut\w*|mots?|verbes?|phrases?|signifie|palabras?|frases?|significa|parol[ae]"
    r"|verbi|significato|palavras?|woord\w*|werkwoord\w*|zin\b|betekent|słow\w*|czasownik\w*|zdani\w*|znaczy|ord|orden"
    r"|betyder|mening\w*|strings?|keyword\w*|token\w*)\b"
)
_QUOTES = "\"'“”„‚‘’«»`"


def is_technical(text: str) -> bool:
    """Whether the text speaks of mathematics, natural science or programs."""
    return bool(_TECHNICAL.search(text))


def is_quoted_word(text: str, begin: int, end: int) -> bool:
    """Whether text[begin:end] stands in quotation marks of its own in a text that asks about words."""
    return (
        text[begin - 1 : begin] in _QUOTES
        and text[end : end + 1] in _QUOTES
        and begin > 0
        and end < len(text)
        and bool(_ABOUT_WORDS.search(text))
    )
