# What the codes of the catalogue say. Keys and placeholders are the same in all files; en is where a text begins.

# The sentence of a code, and what the scheduler says about this one case.
with-detail = { $sentence } : { $detail }

NOTFOUND_001 = Le job n'existe pas
NOTFOUND_003 = Le déclencheur n'existe pas
NOTFOUND_004 = La tâche n'existe pas ou est terminée
NOTFOUND_005 = Le job ne vient d'aucun fichier, ou n'a jamais eu cette version, et ne peut pas être restauré
NOTFOUND_006 = Le runner n'existe pas
NOTFOUND_008 = Le jeton n'existe pas
NOTFOUND_009 = Personne ne détient ce bail
NOTFOUND_010 = L'ordonnanceur n'a pas de canal d'alarme de ce nom
NOTFOUND_011 = Le calendrier ou le groupe de concurrence n'existe pas
VALIDATION_001 = La définition d'un job, d'un calendrier ou d'un groupe de concurrence est incorrecte
VALIDATION_002 = Une taille de page ou un jeton de page est hors limites
VALIDATION_003 = Un champ de la requête est incorrect
VALIDATION_004 = Un lot est vide ou trop grand
CONFLICT_001 = Le job est en cours, et sa règle n'autorise pas d'autre exécution maintenant
CONFLICT_002 = Quelqu'un d'autre détient le bail, ou il est perdu
CONFLICT_004 = Un autre processus détient cet identifiant de runner
CONFLICT_005 = La clé d'idempotence a été utilisée avec un autre contenu
CONFLICT_007 = Un jeton de ce nom existe déjà
CONFLICT_008 = C'est le dernier jeton d'administration ; sans lui, plus personne ne pourrait créer de jetons
CONFLICT_009 = L'objet a été modifié depuis la version attendue par l'appel
CONFLICT_010 = L'hôte répond encore, ou détient des tâches que personne n'a déclarées perdues
CONFLICT_011 = Le calendrier ou le groupe de concurrence est utilisé
CONFLICT_012 = Quelqu'un a retiré le bail
UNAVAILABLE_001 = Cet ordonnanceur démarre ou s'arrête
UNAVAILABLE_003 = La base de données est injoignable ou occupée
UNAVAILABLE_006 = La base de données n'accepte plus rien : disque plein ou en lecture seule
UNAVAILABLE_007 = Trop de requêtes attendent ; réessayez
AUTH_001 = L'appel ne porte pas de jeton, ou il est inconnu, expiré ou révoqué
AUTH_002 = Le rôle du jeton n'autorise pas cet appel
UNEXPECTED_001 = Une erreur qui ne devrait pas se produire ; voir le journal de l'ordonnanceur
