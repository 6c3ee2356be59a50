# What the codes of the catalogue say. Keys and placeholders are the same in all files; en is where a text begins.

# The sentence of a code, and what the scheduler says about this one case.
with-detail = { $sentence }: { $detail }

NOTFOUND_001 = El job no existe
NOTFOUND_003 = El disparador no existe
NOTFOUND_004 = La tarea no existe o ha terminado
NOTFOUND_005 = El job no viene de ningún archivo, o no tuvo esa versión, y no se puede restaurar
NOTFOUND_006 = El runner no existe
NOTFOUND_008 = El token no existe
NOTFOUND_009 = Nadie tiene esta concesión
NOTFOUND_010 = El planificador no tiene ningún canal de alarma con ese nombre
NOTFOUND_011 = El calendario o el grupo de concurrencia no existe
VALIDATION_001 = La definición de un job, un calendario o un grupo de concurrencia es incorrecta
VALIDATION_002 = Un tamaño de página o un token de página está fuera de rango
VALIDATION_003 = Un campo de la petición es incorrecto
VALIDATION_004 = Un lote está vacío o es demasiado grande
CONFLICT_001 = El job está en ejecución y su regla no permite otra ejecución ahora
CONFLICT_002 = Otro tiene la concesión, o se ha perdido
CONFLICT_004 = Otro proceso tiene este identificador de runner
CONFLICT_005 = La clave de idempotencia se usó con otro contenido
CONFLICT_007 = Ya existe un token con este nombre
CONFLICT_008 = Es el último token de administración; sin él nadie podría crear tokens
CONFLICT_009 = Se modificó después de la versión que espera la llamada
CONFLICT_010 = El host sigue respondiendo, o tiene tareas que nadie ha dado por perdidas
CONFLICT_011 = El calendario o el grupo de concurrencia está en uso
CONFLICT_012 = Alguien retiró la concesión
UNAVAILABLE_001 = Este planificador está arrancando o deteniéndose
UNAVAILABLE_003 = La base de datos no es accesible o está ocupada
UNAVAILABLE_006 = La base de datos no admite más: disco lleno o de solo lectura
UNAVAILABLE_007 = Hay demasiadas peticiones en espera; inténtelo de nuevo
AUTH_001 = La llamada no lleva token, o es desconocido, ha caducado o fue revocado
AUTH_002 = El rol del token no permite esta llamada
UNEXPECTED_001 = Un error que no debería ocurrir; consulte el registro del planificador
